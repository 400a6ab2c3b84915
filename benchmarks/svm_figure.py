"""Draw the time of a grid against the number of images, from the tables that benchmarks/svm_grid.py left.

python -m benchmarks.svm_figure benchmarks/results/svm_grid_*.md --into docs/figures
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from mpitune.figures.plotting import BLUE, GREEN, RED, save, styled, subplots

SOLVERS = {"scikit-learn": RED, "scikit-learn-intelex": GREEN, "shared": BLUE}


def read(path: Path) -> tuple[int, dict[str, float]]:
    """(number of images, CPU seconds by solver) of one table."""
    text = path.read_text()
    (n,) = re.findall(r"^n = (\d+)", text, flags=re.MULTILINE)
    rows = re.findall(r"^\| ([\w-]+) +\| ([\d.]+)", text, flags=re.MULTILINE)
    return int(n), {name: float(seconds) for name, seconds in rows if name in SOLVERS}


@styled()
def main() -> None:
    parser = argparse.ArgumentParser(description="Time of a grid against the number of images.")
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--into", type=Path, default=Path("docs/figures"))
    arguments = parser.parse_args()
    measured = sorted(read(path) for path in arguments.tables)
    figure, axes = subplots()
    for name, colour in SOLVERS.items():
        seconds = [of[name] for _, of in measured]
        axes.plot([n for n, _ in measured], seconds, "o-", color=colour)
        end = (measured[-1][0], seconds[-1])
        axes.annotate(name, end, (6, 0), textcoords="offset points", color=colour, va="center")
    axes.set(xscale="log", yscale="log", xlabel="images", ylabel="CPU seconds of the grid", xlim=(1700, 26000))
    axes.set_xticks([n for n, _ in measured], [f"{n:,}" for n, _ in measured])
    axes.minorticks_off()
    save(figure, arguments.into, "svm_time")


if __name__ == "__main__":
    main()
