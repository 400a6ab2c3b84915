"""How many empty trials a second go through the whole path, and how busy a thousand slots are kept.

    python -m benchmarks.dispatch                   against concurrent.futures and mpi4py.futures
    python -m benchmarks.dispatch --simulate 1000   the coordinator against simulated slots

Ours is the whole engine: queue, agent, pipes, workers, journal with fsync, study. The others return a
number to a list and remember nothing. Start-up is left out of all: ours is timed with few and with n
trials and the difference taken, the others' workers are warmed up first. The ways take turns.
"""

from __future__ import annotations

import argparse
import heapq
import io
import logging
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import circumstances, publish, table
from mpitune.engine.coordinator import Coordinator
from mpitune.engine.messages import Returned, Run
from mpitune.engine.slots import LATENCY, Resources
from mpitune.engine.study import Study
from mpitune.experiment import Experiment, WorkerContext, one_round, per_trial
from mpitune.options import RunOptions
from mpitune.port import Scheduling
from mpitune.settings import setting
from mpitune.storage.journal import Journal
from mpitune.studies import run_study
from mpitune.trial import Place, Result, Rounds, Trial
from tests.helpers import mpirun_command

WORKERS = 2


@dataclass(frozen=True)
class Empty(Experiment):
    """Trials that do nothing."""

    n: int = setting(help="how many")

    def searches(self) -> list[Rounds]:
        return [one_round(Trial(f"t{i}", {"x": i}) for i in range(self.n))]

    def objective(self, worker: WorkerContext) -> Any:
        return per_trial(lambda trial: {"y": nothing(int(trial.params["x"]))})


def nothing(x: int) -> int:
    return x


def ours(n: int) -> float:
    """Seconds of a study of n empty trials, from nothing to its table."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        options = RunOptions(gpu="none", workers=WORKERS, results=Path(folder), quiet=True)
        start = time.perf_counter()
        run_study(Empty(n), options)
        return time.perf_counter() - start


def futures(executor: Any, n: int) -> float:
    """Seconds of n submitted calls of a warm executor."""
    for future in [executor.submit(nothing, i) for i in range(4 * WORKERS)]:
        future.result()
    start = time.perf_counter()
    for future in [executor.submit(nothing, i) for i in range(n)]:
        future.result()
    return time.perf_counter() - start


def concurrent_futures(n: int) -> float:
    with ProcessPoolExecutor(WORKERS) as executor:
        return futures(executor, n)


def mpi4py_futures(n: int) -> float:
    """Run under mpirun with a rank for the caller and one for each worker."""
    command = [*mpirun_command(1 + WORKERS), sys.executable, "-m", "mpi4py.futures", "-m", "benchmarks.dispatch"]
    done = subprocess.run([*command, "--inside-mpi", str(n)], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def compare(n: int, repeats: int) -> str:
    seconds: dict[str, list[float]] = {"this engine": [], "concurrent.futures": [], "mpi4py.futures": []}
    for _ in range(repeats):
        few = ours(WORKERS)
        seconds["this engine"].append(ours(n) - few)
        seconds["concurrent.futures"].append(concurrent_futures(n))
        seconds["mpi4py.futures"].append(mpi4py_futures(n))
    rates = {name: n / statistics.median(times) for name, times in seconds.items()}
    rows = [
        {
            "way": name,
            "trials/s (median)": f"{rate:.0f}",
            "lowest to highest": f"{n / max(seconds[name]):.0f} to {n / min(seconds[name]):.0f}",
            "journal": "every result, fsynced" if name == "this engine" else "none",
            "ours / this": f"{rates['this engine'] / rate:.2f}",
        }
        for name, rate in rates.items()
    ]
    return circumstances("mpi4py", n=n, workers=WORKERS, repeats=repeats) + "\n\n" + table(rows)


def simulate(n_slots: int, per_slot: int, seconds: float, by_processor: bool = False) -> str:
    """Utilisation of slots with trials of about `seconds`, in simulated time that the real coordinator's work moves on.

    Every message takes LATENCY / 2 each way, which is what two ranks that poll take. It is pickled and unpickled as on
    the way through MPI, which takes no time of its own here. The journal is real, on this machine's disk. A slot waits
    until its message is sent, also for its first trial. With by_processor the time moves on by the coordinator's
    processor time in place of wall time, for a machine that others use as well; waits for its disk are then left out.
    The last trials of a study leave slots without work in any engine; so `busy` leaves out what comes after a slot's
    last trial.
    """
    rng = np.random.default_rng(0)
    n_trials = n_slots * per_slot
    durations = (seconds * rng.uniform(0.8, 1.2, n_trials)).tolist()
    study = Study([one_round(Trial(f"t{i}", {"x": i}) for i in range(n_trials))], {}, {})
    places = {
        (slot // 8, slot % 8): Place(f"node{slot // 8}", slot // 8, slot % 8, "simulated") for slot in range(n_slots)
    }
    free = dict.fromkeys(places, 0.0)  # when each slot has done all it was given
    events: list[tuple[float, int, int, bytes]] = []  # arrival at the coordinator, a number, rank, message
    clock = time.process_time if by_processor else time.perf_counter
    now = busy = waited = waited_first = last = 0.0
    began = clock()  # when what the coordinator does at present began, at `now`
    posted: list[tuple[float, int, Run]] = []  # when, to which rank

    def tell(rank: int, message: Any) -> None:
        if isinstance(message, Run):
            pickle.dumps(message)
            posted.append((now + clock() - began, rank, message))

    def begin() -> None:
        """The slots begin what was posted to them."""
        nonlocal busy, waited, waited_first, last
        for sent, rank, run_ in posted:
            slot = (rank, run_.slot)
            (trial,) = run_.batch
            number = int(trial.params["x"])
            start, took = max(free[slot], sent + LATENCY / 2), durations[number]
            waited += start - free[slot]
            if not free[slot]:
                waited_first += start
            free[slot] = start + took
            busy += took
            last = max(last, free[slot])
            answer = Returned(run_.slot, (Result(trial.key, {"y": 0.0}, seconds=took),), 1)
            heapq.heappush(events, (free[slot] + LATENCY / 2, number, rank, pickle.dumps(answer)))
        posted.clear()

    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder), {"settings": {"experiment": "simulation"}})
        coordinator = Coordinator(study, journal, Scheduling(), Resources(places, tell))
        spent, used, messages = 0.0, 0.0, 0
        began = clock()
        coordinator.step()
        filled = now = clock() - began
        begin()
        while not coordinator.finished:
            now = max(now, events[0][0])
            arrived = []
            while events and events[0][0] <= now:
                arrived.append(heapq.heappop(events))
            start, on_processor, began = time.perf_counter(), time.process_time(), clock()
            for _, _, rank, content in arrived:
                coordinator.handle(rank, pickle.loads(content))
            coordinator.step()
            took = clock() - began
            spent += time.perf_counter() - start
            used += time.process_time() - on_processor
            begin()
            now += took
            messages += len(arrived)
        journal.close()
    first, later = waited_first / n_slots, (waited - waited_first) / (n_trials - n_slots)
    hour = 3600 / (3600 + first + (3600 / seconds - 1) * later)
    row = {
        "slots": n_slots,
        f"trials of {seconds:g} s": n_trials,
        "first trials given, s": f"{filled:.1f}",
        "wait for the first, s": f"{first:.2f}",
        "for each other, s": f"{later:.3f}",
        "busy": f"{busy / (busy + waited):.2%}",
        "in an hour": f"{hour:.2%}",
        "utilisation": f"{busy / (n_slots * last):.1%}",
        "coordinator, us per message": f"{spent / messages * 1e6:.0f}",
        "of these on a processor": f"{used / messages * 1e6:.0f}",
        "coordinator's share of a core": f"{(used if by_processor else spent) / last:.1%}",
    }
    facts = {"slots": n_slots, "trials": n_trials, "time": "processor" if by_processor else "wall"}
    return circumstances(**facts) + "\n\n" + table([row])


def main() -> None:
    parser = argparse.ArgumentParser(description="Dispatch rates, or utilisation of simulated slots.")
    parser.add_argument("--n", type=int, default=20_000, help="empty trials")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--simulate", type=int, metavar="SLOTS", help="play the coordinator against so many slots")
    parser.add_argument("--per-slot", type=int, default=60, help="simulated trials of each slot")
    parser.add_argument("--by-processor", action="store_true", help="time moves on by processor time")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a simulated trial")
    parser.add_argument("--results", type=Path, help="keep the table in this file")
    parser.add_argument("--inside-mpi", type=int, metavar="N", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    if arguments.inside_mpi:
        from mpi4py.futures import MPIPoolExecutor

        with MPIPoolExecutor() as executor:
            print(futures(executor, arguments.inside_mpi))
    elif arguments.simulate:
        simulated = simulate(arguments.simulate, arguments.per_slot, arguments.seconds, arguments.by_processor)
        publish(simulated, arguments.results)
    else:
        publish(compare(arguments.n, arguments.repeats), arguments.results)


if __name__ == "__main__":
    main()
