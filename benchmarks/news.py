"""How soon a program says its first word, how long it is silent at most, and how soon a search of scikit-learn solves.

    python -m benchmarks.news [--data DIR] [--seconds 40] [--rounds 3] [--results FILE]

Each command runs as a user types it, once with a terminal for stderr and once with a pipe, as in a log. It is stopped
after --seconds if it has not ended by itself; the silence until then counts. The time of the first word is from the
start of the command to its first line on stderr. With mpirun it includes the start of mpirun. One row has the least
time before any program of Python could speak.

The second table is of GridSearchCV with an SVC on digits, 4 x 4 points, 5 folds, with the solver compiled before. It
has the time from the call of `fit` until it returns. If there is a journal, it also has the times until a worker begins
its first trial and until the first result. With a results folder there is a report, too.
"""

from __future__ import annotations

import argparse
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

from benchmarks.machine import circumstances, load, publish, table
from tests.helpers import mpirun_command

SEARCH = """
import time
from mpitune import Float, search

def objective(trial):
    time.sleep(12 * trial.params["x"])
    return {"loss": trial.params["x"]}

if __name__ == "__main__":
    space = {"x": Float(0.9, 1.0)}
    search(objective, space, strategy="random", n_trials=6, minimize="loss", workers=2, results="RESULTS")
"""

FIT = """
import time
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from mpitune.sklearn import GridSearchCV
from mpitune.storage.history import read_study

if __name__ == "__main__":
    x, y = load_digits(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    grid = {"C": [0.1, 1, 10, 100], "gamma": [0.0003, 0.001, 0.003, 0.01]}
    begin = time.time()
    GridSearchCV(SVC(), grid, cv=5, refit=False, ARGUMENTS).fit(x, y)
    times = [time.time() - begin]
    if Path("RESULTS").exists():
        results = read_study(Path("RESULTS")).results.values()
        times += [min(one.ended - one.seconds for one in results) - begin, min(one.ended for one in results) - begin]
    print(*times)
"""
SEARCHES = {
    "as it is": "",
    "two workers": "workers=2",
    "two workers, a results folder": "workers=2, results='RESULTS'",
}


def fitted(arguments: str) -> list[float]:
    """Seconds from the call of `fit` to its return and, with a results folder, to the first trial and its result."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "fit.py")
        script.write_text(FIT.replace("ARGUMENTS", arguments).replace("RESULTS", f"{folder}/search"))
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        done = subprocess.run([sys.executable, str(script)], env=environ, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def searches(rounds: int) -> list[dict[str, str]]:
    """A row for each way to call the search."""
    rows = []
    for name, arguments in SEARCHES.items():
        fitted(arguments)  # compiles
        times = [median(each) for each in zip(*(fitted(arguments) for _ in range(rounds)), strict=True)]
        shown = [f"{seconds:.2f}" for seconds in times] + [""] * (3 - len(times))
        names = ("GridSearchCV of SVC on digits", "fit returns, s", "first trial begins, s", "first result, s")
        rows.append(dict(zip(names, [name, *shown], strict=True)))
    return rows


def listened(command: Sequence[str], terminal: bool, seconds: float) -> tuple[float, float, float]:
    """(until the first word, the longest silence after it, until the end) of a command, in seconds."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    begin = time.monotonic()
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    job = subprocess.Popen(command, stderr=theirs, stdout=subprocess.DEVNULL, env=environ, start_new_session=True)
    os.close(theirs)
    said: list[float] = []
    with suppress(OSError):  # which is how a terminal ends
        while True:
            if time.monotonic() - begin > seconds and job.poll() is None:
                break
            if select.select([ours], [], [], 0.05)[0]:
                if not os.read(ours, 1 << 16):
                    break
                said.append(time.monotonic() - begin)
    end = time.monotonic() - begin
    if (end < seconds and job.wait()) or not said:
        raise SystemExit(f"{' '.join(command)} failed with status {job.returncode}, or said nothing")
    with suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    os.close(ours)
    return said[0], max(b - a for a, b in zip(said, [*said[1:], end], strict=True)), end


def main() -> None:
    parser = argparse.ArgumentParser(description="How soon programs say something, and how long they are silent.")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of MNIST")
    parser.add_argument("--seconds", type=float, default=40.0, help="after which a command is ended")
    parser.add_argument("--rounds", type=int, default=3, help="searches of scikit-learn; the median is shown")
    parser.add_argument("--results", type=Path, help="keep the tables in this file")
    arguments = parser.parse_args()
    of_searches = searches(arguments.rounds)
    two_ranks = mpirun_command(2)
    mnist = ["--dataset", "mnist", "--data", str(arguments.data), "--gpu", "none"]
    nn, svm = ["-m", "mnist_nn", "2", "4", *mnist], ["-m", "mnist_svm", "5", *mnist]
    rows = []
    for terminal in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "searches.py")
            script.write_text(SEARCH.replace("RESULTS", f"{folder}/search"))
            for name, command in {
                "mnist_nn 2 4": [sys.executable, *nn, "--results", f"{folder}/nn"],
                "mnist_svm 5": [sys.executable, *svm, "--results", f"{folder}/svm"],
                "a script with search()": [sys.executable, str(script)],
                "mpirun -n 2, nothing": [*two_ranks, sys.executable, "-c", "import sys; print(1, file=sys.stderr)"],
                "mpirun -n 2 mnist_nn 2 4": [
                    *two_ranks, sys.executable, *nn, "--workers", "1", "--results", f"{folder}/mpi",
                ],
            }.items():  # fmt: skip
                first, silent, end = listened(command, terminal, arguments.seconds)
                rows.append({
                    "command": name, "stderr": "terminal" if terminal else "pipe", "first word, s": f"{first:.2f}",
                    "longest silence, s": f"{silent:.1f}", "listened, s": f"{end:.0f}",
                })  # fmt: skip
                print(rows[-1], file=sys.stderr, flush=True)
    publish(
        f"{circumstances('numpy', 'torch', 'mpi4py', load=load())}\n\n{table(rows)}\n\n{table(of_searches)}",
        arguments.results,
    )


if __name__ == "__main__":
    main()
