"use strict";
// Draws what moves: the library and the data come inflated from this file, one View of the study.
(async () => {
  if (!("DecompressionStream" in window)) return; // an old browser: the tables stay

  const inflate = async (element) => {
    const text = atob(element.textContent.trim());
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  // A page that a browser has saved has what was made before: it is made again.
  document.querySelectorAll(".made").forEach((made) => made.remove());
  document.querySelectorAll(".chart, .explore select, .trials thead").forEach((filled) => filled.replaceChildren());
  const library = document.createElement("script");
  library.className = "made";
  library.textContent = await inflate(document.getElementById("library"));
  document.head.append(library);
  if (!window.echarts) return;

  const MOST_LINES = 2000, MOST_POINTS = 6000, ROWS = 50; // drawn at a time; more would only be slower
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (v) => {
    if (v === null || v === undefined) return "none";
    if (!Number.isFinite(v)) return v > 0 ? "∞" : "-∞";
    const rounded = +v.toPrecision(4), plain = v === 0 || (Math.abs(v) >= 1e-3 && Math.abs(v) < 1e5);
    return plain ? String(rounded) : rounded.toExponential().replace("e+", "e");
  };
  const percent = (v, is) => (v === null ? "none" : is ? number(100 * v) + " %" : number(v));
  const html = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
  const at = (column, i) => (Array.isArray(column) ? column[i] : column.of[column.at[i]]);
  const raw = (column, i) => (Array.isArray(column) ? column[i] : column.at[i]);
  const length = (column) => (Array.isArray(column) ? column.length : column.at.length);
  const finite = (values) => values.filter((v) => typeof v === "number" && Number.isFinite(v));
  const least = (values) => values.reduce((a, b) => (b < a ? b : a), Infinity);
  const most = (values) => values.reduce((a, b) => (b > a ? b : a), -Infinity);
  const mean = (values) => (values.some((v) => v === null) ? null : values.reduce((a, b) => a + b, 0) / values.length);
  /** The ends of numbers, and whether they are on a log axis: as their space says, else where their middle is nearer half way so. */
  const spread = (values, known) => {
    const good = Float64Array.from(finite(values)).sort();
    const [low, high, middle] = [good[0] ?? Infinity, good[good.length - 1] ?? -Infinity, good[good.length >> 1]];
    const off = (f) => Math.abs((f(middle) - f(low)) / (f(high) - f(low)) - 0.5);
    return { low, high, log: low > 0 && (known ?? (high > 30 * low && off(Math.log) < off(Number))) };
  };
  const VIRIDIS = ["#fde725", "#5ec962", "#21918c", "#3b528b", "#440154"];
  const charts = new Set();
  const brush = (chart) => chart.dispatchAction({
    type: "takeGlobalCursor", key: "brush", brushOption: { brushType: "rect", brushMode: "single" },
  });

  /** A chart that is made when it comes into view, made again when colours change, and follows its width. */
  class Chart {
    constructor(element, label, option, wire) {
      Object.assign(this, { element, option, wire, chart: null });
      element.closest(".live").hidden = false;
      element.setAttribute("role", "img");
      element.setAttribute("aria-label", label);
      charts.add(this);
      new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && this.make(), { rootMargin: "300px" }).observe(element);
      new ResizeObserver(() => this.chart && this.chart.resize()).observe(element);
    }
    make() {
      if (this.chart) return;
      this.chart = echarts.init(this.element, null, { renderer: "canvas" });
      this.draw();
      if (this.wire) this.wire(this.chart);
      this.element.dataset.drawn = "1";
    }
    draw() {
      if (this.chart) this.chart.setOption(this.base(this.option()), true);
    }
    base(option) {
      const ink = style("--ink"), soft = style("--soft"), rule = style("--rule");
      const axis = (own) => ({
        nameTextStyle: { color: ink },
        axisLine: { lineStyle: { color: soft } },
        splitLine: { lineStyle: { color: rule } },
        ...own,
        axisLabel: { color: soft, hideOverlap: true, ...(own.axisLabel || {}) },
      });
      for (const name of ["xAxis", "yAxis"]) if (option[name]) option[name] = axis(option[name]);
      const tooltip = { confine: true, backgroundColor: style("--card"), borderColor: rule, textStyle: { color: ink } };
      return {
        animation: false,
        textStyle: { color: ink, fontFamily: "inherit" },
        ...option,
        tooltip: { ...tooltip, ...(option.tooltip || {}) },
      };
    }
  }

  /** One study: its charts, its table, and the candidates that are chosen in any of them. */
  class View {
    constructor(article, data) {
      Object.assign(this, { article, data, chosen: null, n: length(data.values) });
      this.rows = length(data.trials.trial);
      this.find = (selector) => article.querySelector(selector);
      for (const element of article.querySelectorAll("[data-chart]")) {
        const panel = data.charts[+element.dataset.chart];
        this[panel.kind](element, panel);
      }
      if (this.n > 1 && finite(data.values).length) this.explore();
      this.table();
    }

    // -- curves, and bars with intervals

    lines(element, { title, x, y, curves, dots, steps, percent: is }) {
      const colours = ["--blue", "--orange", "--green", "--violet", "--red", "--ink", "--soft"];
      const many = curves.length > colours.length;
      const values = finite(curves.flatMap((curve) => curve.y)), others = finite(dots[1]).sort((a, b) => a - b);
      const span = (n) => others[others.length - 1 - n] - others[n]; // without n dots at either end
      const few = Math.floor(0.02 * (others.length - 1)), cut = span(0) > 3 * span(few) ? few : 0; // outliers, which are said
      const low = Math.min(least(values), others[cut] ?? Infinity);
      const high = Math.max(most(values), others[others.length - 1 - cut] ?? -Infinity);
      const log = steps && low > 0 && high > 20 * low;
      const margin = log ? (high / low) ** 0.04 : 0.04 * (high - low) || 0.04 * Math.abs(low) || 1;
      const ends = log ? { min: low / margin, max: high * margin } : { min: low - margin, max: high + margin };
      const beyond = others.filter((v) => v < low || v > high).length;
      const named = y + (beyond ? `, ${beyond} of ${others.length} dots are beyond its ends` : "");
      const whole = curves.every((curve) => curve.x.every(Number.isInteger));
      const tip = (name, [a, b]) => `${html(name)}<br>${html(x)} ${number(a)}<br><b>${html(y)} ${percent(b, is)}</b>`;
      new Chart(element, `${title}: ${curves.map((curve) => curve.name).join(", ")} across ${x}, up ${named}`, () => ({
        grid: { left: 74, right: 24, top: 34, bottom: 46 },
        legend: { show: curves.length > 1 && !many, top: 0, right: 20, textStyle: { color: style("--ink") } },
        tooltip: { formatter: (p) => tip(p.seriesName, p.value) },
        xAxis: { type: "value", scale: true, name: x, nameLocation: "middle", nameGap: 28, minInterval: whole ? 1 : 0, axisLabel: { formatter: number } },
        yAxis: {
          type: log ? "log" : "value", scale: steps, name: named, ...(steps ? ends : {}), nameTextStyle: { align: "left", color: style("--ink") },
          axisLabel: { formatter: (v) => percent(v, is), ...(steps ? { showMinLabel: false, showMaxLabel: false } : {}) },
        },
        series: [
          ...(dots[0].length ? [{
            type: "scatter", name: "candidate", symbolSize: 4,
            itemStyle: { color: style("--gone"), opacity: 0.6 },
            data: dots[0].map((a, i) => [a, dots[1][i]]),
          }] : []),
          ...curves.map((curve, n) => ({
            type: "line", name: curve.name, step: steps ? "end" : false, symbolSize: 5, showSymbol: curve.x.length <= 60 && !steps,
            color: style(steps ? "--red" : curve.faint ? "--gone" : many ? "--blue" : colours[n]), lineStyle: { width: many ? 1 : 2, opacity: many ? 0.4 : 1 },
            data: curve.x.map((a, i) => [a, Number.isFinite(curve.y[i]) ? curve.y[i] : null]),
          })),
        ],
      }));
    }

    bars(element, { title, names, values, lows, highs, marked, percent: is }) {
      element.style.height = `${names.length * 26 + 50}px`;
      const whisker = (params, api) => {
        const [from, to] = [1, 2].map((end) => api.coord([api.value(end), api.value(0)]));
        return { type: "line", shape: { x1: from[0], y1: from[1], x2: to[0], y2: to[1] }, style: { stroke: style("--ink"), lineWidth: 1.5 } };
      };
      const ends = names.map((_, n) => [n, lows[n], highs[n]]).filter((end) => end[1] !== null && end[2] !== null);
      const said = (n) => `${names[n].length > 20 ? names[n].slice(0, 19) + "…" : names[n]}  ${percent(values[n], is)}`;
      const tip = (n) => `${html(names[n])}: <b>${percent(values[n], is)}</b>` + (lows[n] === null ? "" : `<br>${percent(lows[n], is)} to ${percent(highs[n], is)}`);
      new Chart(element, `${title}: ${names.map((name, n) => `${name} ${percent(values[n], is)}`).join(", ")}`, () => ({
        grid: { left: 10, right: 24, top: 8, bottom: 30, containLabel: true },
        tooltip: { formatter: (p) => tip(p.dataIndex) },
        xAxis: { type: "value", ...(marked ? { scale: true, min: least(finite(lows.concat(values))), max: most(finite(highs.concat(values))) } : { min: 0 }), axisLabel: { formatter: (v) => percent(v, is), showMinLabel: !marked, showMaxLabel: !marked } },
        yAxis: { type: "category", inverse: true, data: names.map((_, n) => said(n)), axisLabel: { color: style("--ink") }, splitLine: { show: false } },
        series: [
          marked
            ? { type: "scatter", z: 4, symbolSize: 9, data: values.map((v, n) => ({ value: [v, n], itemStyle: { color: style(marked[n] ? "--blue" : "--gone") } })) }
            : { type: "bar", data: values, barMaxWidth: 18, itemStyle: { color: style("--blue") } },
          { type: "custom", silent: true, z: 3, renderItem: whisker, data: ends, encode: { x: [1, 2], y: 0 } },
        ],
      }));
    }

    // -- the grid, and the folds of one of its rows

    map(element, grid) {
      const [xs, ys] = [grid.x.at, grid.y.at];
      const means = ys.map((_, g) => xs.map((_, c) => mean(grid.folds.map((fold) => fold[g][c]))));
      const flat = finite(means.flat());
      const log = least(flat) > 0;
      const shown = (v) => (log ? Math.log10(v) : v);
      const cells = [];
      means.forEach((row, g) => row.forEach((v, c) => v !== null && Number.isFinite(v) && cells.push([c, g, shown(v)])));
      let row = grid.best ? grid.best[0] : 0;
      const tip = (g, c) => [
        `${html(grid.x.name)} ${number(xs[c])}, ${html(grid.y.name)} ${number(ys[g])}`,
        `<b>${percent(means[g][c], grid.percent)}</b>`,
        `folds: ${grid.folds.map((fold) => percent(fold[g][c], grid.percent)).join(", ")}`,
        `${number(grid.seconds[g][c])} s at ${html(at(grid.places[g], c) || "no place")}`,
      ].join("<br>");
      new Chart(element, `${grid.title}: heat map of ${grid.y.name} by ${grid.x.name}; its numbers are in the table of trials`, () => ({
        grid: { left: 70, right: 14, top: 30, bottom: 92 },
        tooltip: { formatter: (p) => tip(p.value[1], p.value[0]) },
        xAxis: { type: "category", data: xs.map(number), name: grid.x.name, nameLocation: "middle", nameGap: 26, splitLine: { show: false } },
        yAxis: { type: "category", data: ys.map(number), name: grid.y.name, splitLine: { show: false } },
        visualMap: {
          min: shown(least(flat)), max: shown(most(flat)) || 1, calculable: true, precision: 3, itemHeight: 180,
          orient: "horizontal", left: "center", bottom: 0,
          inRange: { color: VIRIDIS }, textStyle: { color: style("--soft") },
          formatter: (v) => percent(log ? 10 ** v : v, grid.percent),
        },
        series: [
          {
            type: "heatmap", data: cells, progressive: 20000,
            itemStyle: { borderColor: style("--paper"), borderWidth: xs.length > 40 ? 0 : 1 },
            emphasis: { itemStyle: { borderColor: style("--ink"), borderWidth: 2 } },
          },
          {
            type: "scatter", symbol: "rect", symbolSize: 16,
            data: grid.best ? [[grid.best[1], grid.best[0], shown(means[grid.best[0]][grid.best[1]])]] : [],
            itemStyle: { color: "transparent", borderColor: style("--red"), borderWidth: 3 },
          },
        ],
      }), (chart) => chart.on("click", (p) => { row = p.value[1]; select.value = row; boxes.draw(); }));
      const choice = element.parentElement.querySelector(".folds");
      const label = document.createElement("label");
      label.className = "made";
      const select = document.createElement("select");
      ys.forEach((y, g) => select.add(new Option(number(y), g, false, g === row)));
      label.append(`folds at ${grid.y.name} = `, select);
      choice.before(label);
      const boxes = new Chart(choice, `the folds of one ${grid.y.name} against ${grid.x.name}`, () => {
        const folds = xs.map((_, c) => finite(grid.folds.map((fold) => fold[row][c])).sort((a, b) => a - b));
        const quantile = (values, q) => {
          const p = q * (values.length - 1), i = Math.floor(p);
          return values[i] + (p - i) * ((values[i + 1] ?? values[i]) - values[i]);
        };
        const five = (values) => (values.length ? [0, 0.25, 0.5, 0.75, 1].map((q) => quantile(values, q)) : []);
        const dots = folds.flatMap((values, c) => values.map((v) => [c, v]));
        const { low, high, log } = spread(dots.map((d) => d[1]));
        return {
          grid: { left: 70, right: 14, top: 24, bottom: 50 },
          tooltip: { formatter: (p) => tip(row, p.seriesType === "boxplot" ? p.dataIndex : p.value[0]) },
          xAxis: { type: "category", data: xs.map(number), name: grid.x.name, nameLocation: "middle", nameGap: 28 },
          yAxis: {
            type: log ? "log" : "value", scale: true, name: "error of a fold",
            min: log ? low / 1.2 : undefined, max: log ? high * 1.2 : undefined,
            axisLabel: { formatter: (v) => percent(v, grid.percent) },
          },
          series: [
            {
              type: "boxplot", data: folds.map(five), boxWidth: [3, 22],
              itemStyle: { color: "transparent", borderColor: style("--blue") },
            },
            { type: "scatter", data: dots, symbolSize: 5, itemStyle: { color: style("--blue") } }],
        };
      });
      select.addEventListener("change", () => { row = +select.value; boxes.draw(); });
    }

    // -- candidates: parallel coordinates and scatter, each of which chooses for all

    explore() {
      const { data } = this;
      const goal = data.goal ? data.goal.name : "value";
      this.columns = { ...Object.fromEntries(data.params.map((name) => [name, data.candidates[name]])), [goal]: data.values };
      const n = Math.min(this.n, 5000); // that are looked at
      const varies = (name) => new Set(Array.from({ length: n }, (_, i) => at(this.columns[name], i))).size > 1;
      const varied = Object.keys(this.columns).filter((name) => name === goal || varies(name));
      const parts = (Array.isArray(data.space) ? data.space : []).map((part) => /^(.*?): (When\()?(Float|Int)\(.*?log=(True|False)/.exec(part));
      const logs = new Map(parts.filter(Boolean).map((part) => [part[1], part[4] === "True"]));
      const scales = Object.fromEntries(varied.map((name) => [name, Array.isArray(this.columns[name]) ? spread(this.columns[name], logs.get(name)) : null]));
      for (const [name, scale] of Object.entries(scales)) { // below the least number there is a place for candidates without one
        if (!scale || name === goal || !this.columns[name].includes(null)) continue;
        const { low, high, log } = scale;
        scale.none = log && high > low ? low * (low / high) ** 0.1 : low - 0.1 * (high - low || Math.abs(low) || 1);
      }
      const placed = (name, i) => raw(this.columns[name], i) ?? scales[name].none;
      const sign = data.goal && data.goal.maximize ? -1 : 1;
      const order = Array.from({ length: this.n }, (_, i) => i).filter((i) => Number.isFinite(data.values[i] ?? NaN));
      order.sort((a, b) => sign * (data.values[a] - data.values[b]));
      const sample = (count) => { // the best tenth of them whole, and evenly from the rest
        if (order.length <= count) return order.slice();
        const first = Math.floor(count / 10), step = (order.length - first) / (count - first);
        return order.slice(0, first).concat(Array.from({ length: count - first }, (_, k) => order[first + Math.floor(k * step)]));
      };
      const rank = new Float64Array(this.n);
      order.forEach((i, r) => (rank[i] = order.length > 1 ? r / (order.length - 1) : 0));
      const colour = (i) => { const k = Math.min(3, Math.floor(rank[i] * 4)); return this.dark ? VIRIDIS[k] : VIRIDIS[k + 1 > 4 ? 4 : k + 1]; };
      const said = (count) => {
        if (order.length <= count) return "";
        const drawn = `${count.toLocaleString()} of ${order.length.toLocaleString()} candidates are drawn`;
        return `${drawn}, the best ones among them; choosing chooses from all.`;
      };
      const lines = sample(MOST_LINES), points = sample(MOST_POINTS);
      const [saidLines, saidPoints] = this.article.querySelectorAll(".explore .said");
      saidLines.textContent = said(MOST_LINES);
      saidPoints.textContent = said(MOST_POINTS);

      const parallel = new Chart(this.find(".parallel"), `parallel coordinates of ${varied.join(", ")}`, () => ({
        parallel: { left: 60, right: 60, top: 40, bottom: 24 },
        parallelAxis: varied.map((name, dim) => {
          const scale = scales[name], column = this.columns[name];
          const look = {
            dim, name,
            nameTextStyle: { color: style("--ink"), width: 110, overflow: "truncate" },
            axisLine: { lineStyle: { color: style("--soft"), width: 2 } },
            areaSelectStyle: { width: 24, color: style("--blue"), borderColor: style("--blue"), opacity: 0.25 },
            axisLabel: { color: style("--ink"), width: 90, overflow: "truncate" },
          };
          if (!scale) return { ...look, type: "category", data: column.of, axisLabel: { ...look.axisLabel, formatter: (v) => v || "none" } };
          const { low, high, none } = scale;
          const shown = (v) => (none === undefined || v >= low ? number(v) : v - none < 0.01 * (low - none) ? "none" : "");
          return { ...look, type: scale.log ? "log" : "value", min: none ?? low, max: high, axisLabel: { color: style("--ink"), formatter: shown } };
        }),
        tooltip: { show: false },
        series: [{
          type: "parallel", smooth: false, inactiveOpacity: 0.03, activeOpacity: 0.8, progressive: 500,
          lineStyle: { width: 1, opacity: lines.length > 300 ? 0.3 : 0.6 },
          data: lines.slice().reverse().map((i) => ({
            value: varied.map((name) => (!scales[name] ? at(this.columns[name], i) : Number.isFinite(placed(name, i)) ? placed(name, i) : "-")),
            lineStyle: { color: colour(i) },
          })),
        }],
      }), (chart) => chart.on("axisareaselected", () => {
        const wanted = [];
        varied.forEach((name, k) => {
          const spans = chart.getModel().getComponent("parallelAxis", k).activeIntervals;
          if (spans.length) wanted.push([name, spans]);
        });
        const inside = (i) => wanted.every(([name, spans]) => spans.some(([a, b]) => placed(name, i) >= a && placed(name, i) <= b));
        this.choose(wanted.length ? inside : null);
      }));
      this.parallel = parallel;

      const [selectX, selectY] = [this.find(".explore .x"), this.find(".explore .y")];
      for (const name of varied) { selectX.add(new Option(name)); selectY.add(new Option(name)); }
      selectX.value = varied[0];
      selectY.value = goal;
      const scatter = new Chart(this.find(".scatter"), "scatter of two columns of the candidates", () => {
        const [x, y] = [selectX.value, selectY.value];
        const axis = (name) => {
          const scale = scales[name], place = { name, nameLocation: "middle", nameGap: 30 };
          if (!scale) return { ...place, type: "category", data: this.columns[name].of, axisLabel: { formatter: (v) => v || "none" } };
          const ends = scale.log ? { type: "log", min: scale.low / 1.1, max: scale.high * 1.1 } : { type: "value" };
          return { ...place, ...ends, scale: true, axisLabel: { formatter: number } };
        };
        const chosen = this.chosen;
        const text = (name, i) => { const v = at(this.columns[name], i); return typeof v === "string" ? v || "none" : number(v); };
        return {
          toolbox: { show: false }, grid: { left: 74, right: 20, top: 16, bottom: 50 }, xAxis: axis(x), yAxis: { ...axis(y), nameGap: 48 },
          brush: {
            xAxisIndex: 0, yAxisIndex: 0, transformable: false, toolbox: [], inBrush: {}, outOfBrush: {},
            brushStyle: { color: "rgba(86,180,233,.2)", borderColor: style("--blue") },
          },
          tooltip: { formatter: (p) => varied.map((name) => `${html(name)}: ${html(text(name, p.value[2]))}`).join("<br>") },
          series: [{ type: "scatter", symbolSize: points.length > 2000 ? 4 : 7, progressive: 0,
            data: points.slice().reverse().map((i) => ({
              value: [at(this.columns[x], i), at(this.columns[y], i), i],
              itemStyle: chosen && !chosen[i] ? { color: style("--gone"), opacity: 0.25 } : { color: colour(i), opacity: 0.9 },
            })) }],
        };
      }, (chart) => {
        brush(chart);
        chart.on("brushEnd", (event) => {
          const area = event.areas[0];
          if (!area) return this.choose(null);
          const [[x0, x1], [y0, y1]] = area.coordRange;
          const [x, y] = [this.columns[selectX.value], this.columns[selectY.value]];
          const within = (v, a, b) => v !== null && v >= Math.min(a, b) && v <= Math.max(a, b);
          this.choose((i) => within(raw(x, i), x0, x1) && within(raw(y, i), y0, y1));
          chart.dispatchAction({ type: "brush", areas: [] });
          brush(chart);
        });
      });
      this.scatter = scatter;
      for (const select of [selectX, selectY]) select.addEventListener("change", () => scatter.draw());
    }

    choose(keep) {
      this.chosen = keep ? Uint8Array.from({ length: this.n }, (_, i) => keep(i)) : null;
      if (this.scatter) this.scatter.draw();
      if (this.scatter && this.scatter.chart) brush(this.scatter.chart);
      this.filter();
    }

    // -- the table of all trials

    table() {
      const { trials } = this.data, box = this.find(".live.trials");
      box.hidden = false;
      this.names = Object.keys(trials);
      this.order = Int32Array.from({ length: this.rows }, (_, i) => i);
      this.sorted = { name: "", down: false };
      this.page = 0;
      const head = document.createElement("tr");
      for (const name of this.names) {
        const th = document.createElement("th"), button = document.createElement("button");
        th.scope = "col";
        button.type = "button";
        button.textContent = name;
        button.addEventListener("click", () => this.sort(name));
        th.append(button);
        head.append(th);
      }
      box.querySelector("thead").append(head);
      let wait = 0;
      box.querySelector(".filter").addEventListener("input", () => { clearTimeout(wait); wait = setTimeout(() => this.filter(), 150); });
      box.querySelector(".all").addEventListener("click", () => {
        box.querySelector(".filter").value = "";
        if (this.parallel && this.parallel.chart) this.parallel.draw();
        this.choose(null);
      });
      box.querySelector(".back").addEventListener("click", () => { this.page--; this.show(); });
      box.querySelector(".on").addEventListener("click", () => { this.page++; this.show(); });
      this.filter();
    }

    sort(name) {
      this.sorted = { name, down: this.sorted.name === name && !this.sorted.down };
      const column = this.data.trials[name], sign = this.sorted.down ? -1 : 1;
      let value = (i) => column[i];
      if (!Array.isArray(column)) { // texts are compared once, then as numbers
        const rank = new Map([...column.of.keys()].sort((a, b) => column.of[a].localeCompare(column.of[b], undefined, { numeric: true })).map((k, r) => [k, r]));
        const empty = column.of.indexOf("");
        value = (i) => (column.at[i] === empty ? null : rank.get(column.at[i]));
      }
      this.order.sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === null || y === null) return x === y ? a - b : x === null ? 1 : -1;
        return x === y ? a - b : x < y ? -sign : sign;
      });
      const how = this.sorted.down ? "descending" : "ascending";
      [...this.find(".trials thead tr").children].forEach((th, n) => th.setAttribute("aria-sort", this.names[n] === name ? how : "none"));
      this.filter();
    }

    filter() {
      const { trials, candidate } = this.data, tests = [];
      let rest = this.find(".filter").value.replace(/(\S+?)\s*(<=|>=|!=|=|<|>)\s*(\S+)/g, (whole, name, sign, wanted) => {
        const column = trials[name];
        if (!column) return whole;
        const goal = Number(wanted), text = wanted.toLowerCase();
        const same = (v) => (typeof v === "number" ? v === +goal.toPrecision(6) : String(v).toLowerCase() === text);
        const compare = {
          "<": (v) => v < goal, "<=": (v) => v <= goal, ">": (v) => v > goal, ">=": (v) => v >= goal,
          "=": same, "!=": (v) => !same(v),
        }[sign];
        tests.push((i) => { const v = at(column, i); return v !== null && compare(v); });
        return "";
      });
      for (const word of rest.toLowerCase().split(/\s+/).filter(Boolean)) {
        const texts = this.names.map((name) => trials[name]).filter((column) => !Array.isArray(column));
        const hits = texts.map((column) => [column.at, column.of.map((text) => text.toLowerCase().includes(word))]);
        tests.push((i) => hits.some(([index, hit]) => hit[index[i]]));
      }
      const chosen = this.chosen;
      if (chosen) tests.push((i) => candidate[i] >= 0 && chosen[candidate[i]]);
      this.shown = tests.length ? this.order.filter((i) => tests.every((test) => test(i))) : this.order;
      this.page = 0;
      this.show();
    }

    show() {
      const { trials } = this.data, pages = Math.max(1, Math.ceil(this.shown.length / ROWS));
      this.page = Math.min(Math.max(0, this.page), pages - 1);
      const body = this.find(".trials tbody");
      body.replaceChildren(...Array.from(this.shown.slice(this.page * ROWS, (this.page + 1) * ROWS), (i) => {
        const tr = document.createElement("tr");
        this.names.forEach((name, n) => {
          const cell = document.createElement(n ? "td" : "th"), v = at(trials[name], i);
          if (!n) cell.scope = "row";
          cell.textContent = v === null ? "" : typeof v === "number" ? (v === Infinity ? "∞" : v) : v;
          tr.append(cell);
        });
        return tr;
      }));
      this.find(".trials .count").textContent = `${this.shown.length.toLocaleString()} of ${this.rows.toLocaleString()} trials`;
      this.find(".trials .page").textContent = `page ${this.page + 1} of ${pages}`;
      this.find(".trials .back").disabled = this.page === 0;
      this.find(".trials .on").disabled = this.page === pages - 1;
    }
  }

  const dark = matchMedia("(prefers-color-scheme: dark)");
  View.prototype.dark = dark.matches;
  new View(document.querySelector("article"), JSON.parse(await inflate(document.querySelector("script.data"))));
  addEventListener("beforeprint", () => charts.forEach((chart) => {
    chart.make();
    chart.chart.resize({ width: Math.min(680, chart.element.clientWidth) });
    chart.chart.getZr().flush(); // now: a printer waits for no frame
  }));
  addEventListener("afterprint", () => charts.forEach((chart) => chart.chart.resize({ width: "auto" })));
  dark.addEventListener("change", () => { View.prototype.dark = dark.matches; charts.forEach((chart) => chart.draw()); });
  document.documentElement.dataset.ready = Math.round(performance.now());
})();
