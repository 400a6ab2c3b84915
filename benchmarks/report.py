"""The report of a large study: how long it takes to write, how large it is, how soon one can work with it.

    python -m benchmarks.report [--trials 100000] [--visits 3] [--results FILE]

The trials are random points of a made-up loss on 64 slots, in a journal as a study writes it.
`python -m mpitune report` makes the page as a user would; Chromium opens the file without a screen, each time with a
new profile. It can be worked with once all that moves is wired and the table shows its first page; then the table is
sorted by a click. Needs Debian's package chromium and playwright (requirements-dev.txt).
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.machine import circumstances, load, publish, table
from mpitune.storage.journal import Journal
from mpitune.trial import Place, Result, Trial, Used

SLOTS = [Place(f"node{n // 8}", n // 8, n % 8, f"gpu{n % 8}") for n in range(64)]
BEGAN = 1_700_000_000.0
HEADER = {
    "settings": {"experiment": "made up", "objectives": ["minimize loss"]},
    "versions": {}, "commit": None, "command": ["made_up.py"],
}  # fmt: skip
QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
READY = "html[data-ready]"


def write(folder: Path, n: int) -> None:
    """A study of n trials, one of a thousand of which failed."""
    rng = np.random.default_rng(3)
    rates, widths, drops = 10 ** rng.uniform(-5, -1, n), rng.integers(8, 512, n), rng.random(n)
    seconds, noise = rng.exponential(2.0, n), 0.1 * rng.random(n)
    free = [5.0] * len(SLOTS)
    outcomes = []
    for i in range(n):
        slot = min(range(len(SLOTS)), key=free.__getitem__)
        free[slot] += float(seconds[i]) + 0.05
        loss = (math.log10(rates[i]) + 3) ** 2 / 4 + abs(int(widths[i]) - 100) / 500 + float(noise[i])
        params: dict[str, float | int | str] = {
            "rate": float(rates[i]),
            "width": int(widths[i]),
            "drop": float(drops[i]),
            "act": "relu gelu".split()[i % 2],
        }
        failed = i % 1000 == 999
        result = Result(
            f"t{i:06}", {} if failed else {"loss": loss, "accuracy": 1 / (1 + loss)}, {},
            "Traceback\nRuntimeError: CUDA out of memory" if failed else None, seconds=float(seconds[i]),
            ended=BEGAN + free[slot], used=Used(0.9 * float(seconds[i]), 1 << 30), place=SLOTS[slot],
        )  # fmt: skip
        outcomes.append((Trial(result.key, params), result))
    with closing(Journal(folder, HEADER)) as journal:
        journal.note(run={"began": BEGAN, "slots": [*map(str, SLOTS)], "n_trials": n})
        journal.append(outcomes)
        journal.note(end={"complete": True, "seconds": max(free) + 3})


def visited(chromium: Any, path: Path, n: int) -> tuple[float, float]:
    """Seconds until a page can be worked with, and of a click that sorts its table."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.set_default_timeout(120_000)
    begin = time.perf_counter()
    page.goto(path.as_uri())
    page.wait_for_selector(READY, state="attached")
    ready = time.perf_counter() - begin
    assert f"{n:,} of {n:,} trials" in page.locator(".trials .count").inner_text()
    button = page.locator(".live.trials thead button", has_text="loss").first
    button.scroll_into_view_if_needed()
    begin = time.perf_counter()
    button.click()
    page.wait_for_selector("th[aria-sort=ascending]", state="attached")
    sorted_ = time.perf_counter() - begin
    context.close()
    return ready, sorted_


def main() -> None:
    parser = argparse.ArgumentParser(description="How soon the report of a large study can be worked with.")
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--visits", type=int, default=3, help="times that the page is opened")
    parser.add_argument("--results", type=Path, help="keep the table in this file")
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        write(folder, arguments.trials)
        begin = time.perf_counter()
        command = [sys.executable, "-m", "mpitune", "report", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        made = time.perf_counter() - begin
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
        path = folder / "report.html"
        visits = [visited(browser, path, arguments.trials) for _ in range(arguments.visits)]
        said = f"Chromium {browser.version}"
        browser.close()
        row = {
            "trials": f"{arguments.trials:,}",
            "report written, s": f"{made:.1f}",
            "file, MB": f"{path.stat().st_size / 1e6:.1f}",
            "can be worked with, s": f"{median(ready for ready, _ in visits):.2f}",
            "at most, s": f"{max(ready for ready, _ in visits):.2f}",
            "sorted by a click, s": f"{median(sorts for _, sorts in visits):.2f}",
        }
    facts = circumstances("numpy", "scikit-learn", trials=arguments.trials, visits=arguments.visits, load=load())
    publish(f"{facts}, {said}\n\n{table([row])}", arguments.results)


if __name__ == "__main__":
    main()
