"""What compiling the solver takes with an empty cache: function by function, and as a whole.

    python -m benchmarks.compiling [--processes 2] [--results FILE]

The first table has each function that numba compiles, with the CPU seconds of its own: without those of functions that
it calls. Code that is put into others counts where it is made machine code. The second has the whole warm-up, imports
included, by one process and by several that begin together, each on one core: it would start others on free ones.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.machine import circumstances, load, publish, table

CHILD = "import os; os.sched_setaffinity(0, {{{}}}); from benchmarks.compiling import child; child()"
SHOWN = 0.1  # CPU seconds from which on a function has a row


def child() -> None:
    """Warm up and print, as JSON, CPU seconds and signatures of each function."""
    from numba.core import event

    class Clock(event.Listener):
        """CPU seconds of each compilation without those inside it."""

        def __init__(self) -> None:
            self.begun: list[list[float]] = []  # of those that are going on: when, and the seconds of others inside
            self.own: dict[str, list[float]] = defaultdict(list)

        def on_start(self, event: Any) -> None:
            self.begun.append([time.process_time(), 0.0])

        def on_end(self, event: Any) -> None:
            begin, inside = self.begun.pop()
            seconds = time.process_time() - begin
            function = event.data["dispatcher"].py_func
            self.own[f"{function.__module__}.{function.__name__}"].append(seconds - inside)
            if self.begun:
                self.begun[-1][1] += seconds

    begin = time.process_time()
    from mpitune.svm import warm_up

    importing = time.process_time() - begin
    clock = Clock()
    with event.install_listener("numba:compile", clock):
        warm_up()
    print(json.dumps({"importing": importing, "all": time.process_time() - begin, "own": clock.own}))


def warmed(processes: int) -> tuple[float, float, list[dict[str, Any]]]:
    """Wall and CPU seconds of so many processes that warm up together with an empty cache, and what each says."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "NUMBA_CACHE_DIR": f"{folder}/numba", "TMPDIR": folder, "OMP_NUM_THREADS": "1"}
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        cores = sorted(os.sched_getaffinity(0))
        commands = [[sys.executable, "-c", CHILD.format(cores[n % len(cores)])] for n in range(processes)]
        started = [
            subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            for command in commands
        ]
        said = [json.loads(process.communicate()[0]) for process in started]
        wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2, help="that warm up together")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the tables in this file")
    settings = parser.parse_args()
    wholes = {n: warmed(n) for n in (1, settings.processes)}
    (alone,) = wholes[1][2]
    rows = [
        {"function": name, "specialisations": len(own), "CPU s": f"{sum(own):.2f}"}
        for name, own in sorted(alone["own"].items(), key=lambda item: -sum(item[1]))
        if sum(own) >= SHOWN
    ]
    rest = [own for own in alone["own"].values() if sum(own) < SHOWN]
    seconds = sum(map(sum, rest))
    rows.append({
        "function": f"{len(rest)} others", "specialisations": sum(map(len, rest)), "CPU s": f"{seconds:.2f}"
    })  # fmt: skip
    whole = [{"processes": n, "wall, s": f"{wall:.1f}", "CPU s": f"{cpu:.1f}"} for n, (wall, cpu, _) in wholes.items()]
    facts = circumstances("numba", "llvmlite", "numpy", imports=f"{alone['importing']:.1f} CPU s", load=load())
    publish(f"{facts}\n\n{table(rows)}\n\n{table(whole)}", settings.results)


if __name__ == "__main__":
    main()
