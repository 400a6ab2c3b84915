"""What a machine with GPUs can show about this package, within 200 seconds.

    make test-gpu                          in an environment with what fits the driver
    python -m tests.gpu [--folder DIR]     in this one

What each step prints is kept in the folder, with `summary.md`. The status is 0 where all steps passed, or were left out
because a library is not there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.machine import circumstances, table
from mpitune.devices.choose import nvidia_smi, visible_gpus, why_no_gpu
from mpitune.errors import Exit
from tests.helpers import ROOT, journal_lines
from tests.mnist_nn.scaled_digits import write_as_mnist

LIMIT_S = 195.0  # for all steps together
LAST_LINES = 5  # of a step that failed, in the summary
PASSED = "passed"
NETWORKS = "mnist_nn 1 3 --dataset digits --epochs 3 --max-channels 32 --max-hidden-layer 500 --seed 3".split()
GRID = "mnist_svm 4 --dataset digits".split()


class Step(NamedTuple):
    """A command of this Python, or a function that says what is wrong. needs: a library that it cannot do without."""

    name: str
    does: Sequence[str | Path] | Callable[[], str]
    needs: str = ""


def steps(folder: Path) -> list[Step]:
    """The grid is left out without cuML, as it would be computed on the CPU like anywhere."""
    marked = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "@pytest.mark.gpu" in path.read_text()]
    options = "-o addopts= --import-mode=importlib -p no:cacheprovider -rfEs -q -m gpu".split()
    cpu = ["--gpu", "none", "--workers", "2"]
    ddp = ["mnist_nn.ddp", "--data", folder / "data", "--epochs", "2"]

    def into(name: str) -> list[str | Path]:
        return ["--restart", "--results", folder / name]

    return [
        Step("doctor", ["mpitune", "doctor", "--gpu", "all", "--results", folder / "none"]),
        Step("networks, GPU", [*NETWORKS, "--gpu", "0", *into("nn")]),
        Step("networks, CPU", [*NETWORKS, *cpu, *into("nn-cpu")]),
        Step("they agree", lambda: differ(folder / "nn", folder / "nn-cpu", "loss", 1e-3)),
        Step("tests marked gpu", ["pytest", *options, *marked], "pytest"),
        Step("networks, two workers on a GPU", [*NETWORKS, "--gpu", "0,0", *into("nn-two")]),
        Step("they agree", lambda: differ(folder / "nn-two", folder / "nn", "loss", 1e-6)),
        Step("data parallel, all GPUs", [*ddp, "--results", folder / "ddp"]),
        Step("vector machines, all cores", [*GRID, *into("svm")], "cuml"),
        Step("vector machines, cuML", [*GRID, "--gpu", "0", "--solver", "cuml", *into("svm-cuml")], "cuml"),
        Step("they agree", lambda: differ(folder / "svm-cuml", folder / "svm", "error", 0.1), "cuml"),
    ]


def differ(there: Path, here: Path, name: str, limit: float) -> str:
    """How the means of a value in two studies differ, if by more than this share of them; "" if they do not."""
    values = [
        {line["key"]: line["values"].get(name) for line in journal_lines(folder) if not line.get("error")}
        for folder in (there, here)
    ]
    keys = [key for key in values[0] if values[0][key] is not None and values[1].get(key) is not None]
    if not keys or values[0].keys() != values[1].keys():
        return f"{len(keys)} of {len(values[1])} results in common"
    means = [np.mean([float(value[key]) for key in keys]) for value in values]
    return "" if abs(means[0] - means[1]) <= limit * means[1] else f"mean {name} {means[0]:.6g} and {means[1]:.6g}"


def ended(step: Step, output: Path, left: float) -> str:
    """Run a step, and say how it ended: `PASSED`, that it was left out, or what is wrong."""
    if step.needs and find_spec(step.needs) is None:
        return f"left out: {step.needs} is not installed"
    try:
        if callable(step.does):
            return step.does() or PASSED
        with open(output, "w") as file:
            command = [sys.executable, "-m", *map(str, step.does)]
            options = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
            status = subprocess.run(command, cwd=ROOT, timeout=max(1, left), **options).returncode  # type: ignore[call-overload]
        return f"status {status}" if status else PASSED
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:  # a study that was not written
        return f"{type(error).__name__}: {error}"


def main(arguments: Sequence[str] | None = None) -> Exit:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description="All that a machine with GPUs can show.")
    parser.add_argument("--folder", type=Path, help="where everything is kept (default: results/gpu-TIME)")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for all of it (default %(default)g)")
    given = parser.parse_args(arguments)
    if not visible_gpus():
        print(f"python -m tests.gpu: no GPU is visible{why_no_gpu()}: run it on a machine with one", file=sys.stderr)
        return Exit.USAGE
    folder = (given.folder or Path("results") / time.strftime("gpu-%Y%m%d-%H%M%S")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "data").exists():
        write_as_mnist(folder / "data", 600, 200)
    begin, rows, words = time.monotonic(), [], []
    for number, step in enumerate(steps(folder)):
        start, output = time.monotonic(), folder / f"{number:02}.txt"
        said = ended(step, output, begin + given.limit - start)
        rows.append({"step": step.name, "": said, "seconds": f"{time.monotonic() - start:.0f}"})
        print(*rows[-1].values(), sep=", ", flush=True)
        if not said.startswith((PASSED, "left out")):
            lines = output.read_text(errors="replace").splitlines() if output.exists() else [said]
            words.append(f"\n{step.name}:\n\n```\n" + "\n".join(lines[-LAST_LINES:]) + "\n```")
    gpus = nvidia_smi("--query-gpu=name,driver_version,memory.total", "--format=csv,noheader") or ""
    text = "\n".join([circumstances("torch", "cuml", "numpy"), gpus, table(rows), *words, ""])
    (folder / "summary.md").write_text(text)
    print(f"\n{text}\nall of it: {folder}")
    return Exit.ERROR if words else Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
