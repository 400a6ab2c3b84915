"""The page in a real browser: drawn without an error on any screen, it sorts, chooses, prints, runs no other code."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitune.figures.panels import HeatMap, Section
from mpitune.report.page import page
from tests.mpitune.report.journals import HOSTILE, header, hostile_section, many, read, trial_line, write

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

SCREENS: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1440, "height": 900}},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
}
# A closed network refuses what Chromium itself would ask of it.
QUIET = (
    "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync"
)
CHARTS = (".HeatMap", ".folds", ".Lines", ".Bars", ".parallel", ".scatter")
COLOURS = "new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size"
OPTION = "o = echarts.getInstanceByDom(document.querySelector('%s')).getOption()"
PATIENCE_MS = 120_000  # for a machine that does much else


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Debian's Chromium. Skips where it is absent; in continuous integration it must be there."""
    missing = "" if shutil.which("chromium") else "no chromium: tests/cluster/install.sh"
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing = "no playwright: pip install -r requirements-dev.txt"
    if missing and os.environ.get("REQUIRE_CLUSTER"):
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET.split())
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a study of 300 candidates with failures and a grid."""
    folder = tmp_path_factory.mktemp("shown")
    rng = np.random.default_rng(0)
    folds = rng.uniform(0.01, 0.5, (5, 6, 8))
    folds[:, 0, 0] = np.nan
    axes = ("C", [10.0**n for n in range(8)]), ("gamma", [10.0**-n for n in range(6, 0, -1)])
    grid = HeatMap("Mean error", "of the folds.", *axes, folds, (2, 3), folds[0], [["node1/0/0/gpu0"] * 8] * 6)
    (folder / "report.html").write_text(page(read(many(1000, folder / "r"), [Section("Grid", [grid])])))
    return folder / "report.html"


class Visit:
    """A page that is open, what it complained of and what it asked for."""

    def __init__(self, browser: Any, path: Path, **options: Any):
        self.context = browser.new_context(**{**SCREENS["desktop"], **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on(
            "console", lambda said: self.complaints.append(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]", state="attached")

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()

    def drawn(self, selector: str) -> Any:
        """A live drawing, scrolled to, once it is drawn."""
        self.page.locator(selector).first.scroll_into_view_if_needed()
        self.page.wait_for_selector(f"{selector}[data-drawn]", state="attached")
        return self.page.locator(selector).first

    def drag(self, selector: str, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag from one point of an element to another, both as shares of its width and height."""
        box = self.drawn(selector).bounding_box()
        mouse = self.page.mouse
        at = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (start, end)]
        mouse.move(*at[0])
        mouse.down()
        mouse.move(*at[1], steps=8)
        mouse.up()

    def until(self, true: Callable[[], bool]) -> None:
        """Wait until something is so; the page's own policy forbids Playwright's way, which evaluates a text."""
        for _ in range(PATIENCE_MS // 50):
            if true():
                return
            self.page.wait_for_timeout(50)
        raise AssertionError("it has not come about")

    def n_shown(self) -> int:
        """How many trials the table says that it shows."""
        found = re.match(r"([\d,]+) of", self.page.locator(".trials .count").inner_text())
        assert found is not None
        return int(found[1].replace(",", ""))

    def column(self, name: str) -> list[str]:
        """What the table shows in a column."""
        heads = self.page.locator(".live.trials thead button").all_inner_texts()
        return self.page.locator(f".live.trials tbody tr > :nth-child({heads.index(name) + 1})").all_inner_texts()


@pytest.mark.parametrize("screen", SCREENS)
def test_all_is_drawn_without_a_complaint_and_nothing_is_wider_than_the_screen(
    chromium: Any, shown: Path, screen: str
) -> None:
    with Visit(chromium, shown, **SCREENS[screen]) as visit:
        for selector in CHARTS:
            canvas = visit.drawn(selector).locator("canvas").first
            colours = canvas.evaluate(f"c => {COLOURS}")
            assert colours > 3, f"{selector} shows nothing"
        width = visit.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width[0] <= width[1]
        assert visit.complaints == []
        assert [url for url in visit.asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_a_click_or_a_key_sorts_and_words_filter(chromium: Any, shown: Path) -> None:
    with Visit(chromium, shown) as visit:
        button = visit.page.locator(".live.trials thead button", has_text=re.compile("^loss$"))
        button.click()
        losses = [float(text) for text in visit.column("loss")]
        assert losses == sorted(losses) and visit.page.locator("th[aria-sort=ascending]").count() == 1
        button.focus()
        visit.page.keyboard.press("Enter")
        again = [float(text) for text in visit.column("loss") if text]
        assert again == sorted(again, reverse=True) and again[0] > losses[-1]
        filter_ = visit.page.locator(".live.trials .filter")
        filter_.fill("width > 400 relu")
        visit.until(lambda: visit.n_shown() < 1000)
        assert all(int(text) > 400 for text in visit.column("width")) and set(visit.column("act")) == {"relu"}
        filter_.fill("memory")
        visit.until(lambda: visit.n_shown() == 1)
        assert "CUDA out of memory" in visit.column("failure")[0]


def test_no_line_crosses_an_axis_at_a_value_that_is_not_there(chromium: Any, tmp_path: Path) -> None:
    """Even numbers are on no log axis, whichever the space; a space says of few numbers that they are."""
    own = [{"C": 10.0 ** (n % 5)} if n % 2 else {"kind": "a"} for n in range(60)]
    lines = [
        trial_line(f"t{n}", {**params, "z": (n + 1) / 60, "few": 1 + n % 2}, {"loss": n + 1.0}, begin=n, end=n + 1)
        for n, params in enumerate(own)
    ]
    heading = header(space=["C: When(Float(low=1, high=9, log=True), k=1)", "few: Int(low=1, high=2, log=True)"])
    (tmp_path / "report.html").write_text(page(read(write(tmp_path / "r", lines, heading=heading))))
    with Visit(chromium, tmp_path / "report.html") as visit:
        visit.drawn(".parallel")
        drawn = visit.page.evaluate(
            f"{OPTION % '.parallel'}; [o.parallelAxis.map(a => [a.name, a.type]), o.series[0].data]"
        )
        kinds, curves = dict(drawn[0]), [dict(zip(dict(drawn[0]), curve["value"], strict=True)) for curve in drawn[1]]
        assert kinds == {"C": "log", "kind": "category", "z": "value", "few": "log", "loss": "value"}
        without = [curve["C"] for curve in curves if curve["kind"] == "a"]
        assert len(without) == 30 and all(0 < place < 1 for place in without), "below the least C"
        x = (60 + 860 * 3 / 4) / 980  # that of C, the fourth of five axes
        visit.drag(".parallel", (x, 0.9), (x, 0.96))
        visit.until(lambda: visit.n_shown() == 30)
        assert set(visit.column("kind")) == {"a"}


@pytest.mark.parametrize(("losses", "beyond"), [([0.1, 0.9], ""), ([*range(1, 60), 1e9], ", 1 of 60 dots")])
def test_a_dot_of_the_history_is_seen_or_counted(
    chromium: Any, tmp_path: Path, losses: list[float], beyond: str
) -> None:
    lines = [trial_line(f"t{n}", {"x": n}, {"loss": loss}, begin=n, end=n + 1) for n, loss in enumerate(losses)]
    (tmp_path / "report.html").write_text(page(read(write(tmp_path / "r", lines))))
    with Visit(chromium, tmp_path / "report.html") as visit:
        assert f"up loss{beyond}" in visit.drawn(".Lines").get_attribute("aria-label")
        axis = visit.page.evaluate(f"{OPTION % '.Lines'}; o.yAxis[0]")
        assert axis["min"] < min(losses) and sum(loss < axis["max"] for loss in losses) == len(losses) - bool(beyond)
        assert not axis["axisLabel"]["showMaxLabel"], "it would stand on the next one"


def test_a_hostile_journal_runs_nothing(chromium: Any, tmp_path: Path) -> None:
    """It is not in the page, in a drawing, or in a text that appears under the mouse."""
    key = HOSTILE[:190]
    lines = [
        trial_line(f"{n}{key}"[:190], {HOSTILE: HOSTILE, "x": n}, {"loss": n / 9.0}, begin=n, end=n + 1)
        for n in range(9)
    ]
    lines.append(trial_line("bad", {HOSTILE: "b", "x": 9}, {}, begin=9, end=10, error=HOSTILE))
    history = write(tmp_path / "r", lines)
    (tmp_path / "report.html").write_text(page(read(history, [hostile_section()])))
    with Visit(chromium, tmp_path / "report.html") as visit:
        for selector in CHARTS:
            box = visit.drawn(selector).bounding_box()
            for x in range(10):
                for y in range(4):
                    at = box["x"] + box["width"] * (x + 0.5) / 10, box["y"] + box["height"] * (y + 0.5) / 4
                    visit.page.mouse.move(*at)
        assert visit.page.evaluate("window.hacked") is None
        assert visit.complaints == []
        assert visit.page.locator("img").count() == 1, "the drawing"
