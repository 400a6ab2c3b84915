"""Would a study run here? Give it the options of the run, under the same launcher:

    mpirun ... python -m common.doctor [OPTIONS OF THE RUN]

Prints what every rank has, then each problem with its fix. Exit status 2 when the run could not work.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from common.cluster import preflight, probe
from common.cluster.devices import CPU, choose
from common.cluster.launch import Launch, connect, launched
from common.cluster.preflight import Problem
from common.cluster.transport import Transport
from common.doctor.checks import (
    GIB,
    Examined,
    Gpu,
    check_clocks,
    check_data,
    check_mpi,
    check_ranks,
    check_results,
)
from common.engine.node import RunOptions, versions_of
from common.errors import Exit, UsageError
from common.images import Source
from common.output import outlive_readers
from common.settings import Parser, add_settings, from_namespace
from common.trial import Place

PROG = "python -m common.doctor"
LIBRARIES = {"cpu": ("torch", "sklearn"), "gpu": ("torch", "cuml")}


def examine(rank: int, options: RunOptions) -> Examined:
    """Find this rank's devices, and start processes on them to see what its workers would."""
    host = os.uname().nodename.split(".")[0]
    try:
        devices, _ = choose(options.gpu, options.workers, options.threads)
    except UsageError as error:
        return Examined(
            preflight.survey((), options.threads, versions_of()), problems=[Problem(f"{host}: {error}", fatal=True)]
        )
    places = [Place(host, rank, slot, device.name) for slot, device in enumerate(devices)]
    examined = Examined(preflight.survey(places, options.threads, versions_of()))
    running = []
    for number, device in enumerate(dict.fromkeys(devices)):
        kind = "cpu" if device == CPU else "gpu"
        for what in (*(["gpu"] if kind == "gpu" else []), *(LIBRARIES[kind] if number == 0 else [])):
            running.append((device, what, probe.begin(device, what, options.threads)))
    for device, what, process in running:
        answer = probe.answer(process)
        wrong = answer.get("error")
        if what == "gpu" and wrong:
            text = f"no worker can use {device.name} ({wrong}): look at nvidia-smi, and at the driver"
            examined.problems.append(Problem(f"{host}: {text}", fatal=True))
        elif what == "gpu":
            examined.gpus[device.name] = Gpu(**answer)  # type: ignore[arg-type]
        elif wrong:
            text = f"{what} does not work on {device.name} ({wrong}): install the build that fits the driver"
            examined.problems.append(Problem(f"{host}: {text}", fatal=True))
        elif not answer["installed"]:
            text = f"{what} is not installed: what needs it cannot run until it is (see requirements*.txt)"
            examined.problems.append(Problem(f"{host}: {text}"))
    return examined


def table(examined: Iterable[Examined]) -> str:
    """A row per rank and device: host, rank, device, workers, GPU and its memory, cores, memory."""
    rows = [("host", "rank", "device", "workers", "GPU", "GPU memory", "cores", "memory")]
    for rank, one in enumerate(examined):
        node = one.node
        of_host = (f"{node.cores} of {node.cores_there}", f"{node.memory / GIB:.1f} GiB")
        for device, n_workers in Counter(place.device for place in node.places).items() or [("none", 0)]:
            gpu = one.gpus.get(device)
            described = (gpu.name, f"{gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} GiB") if gpu else ("", "")
            rows.append((node.host, str(rank), device, str(n_workers), *described, *of_host))
    used = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in used]
    lines = zip(*used, strict=True)
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def report(examined: Sequence[Examined], clocks: list[float], between: tuple[float, float], launch: Launch,
           options: RunOptions, source: Source) -> Exit:  # fmt: skip
    """Print everything. The status is Exit.USAGE when a problem is fatal."""
    mpi, problems = check_mpi(launch, dict(os.environ))
    results, found = check_results(options.results or Path("results"))
    problems += found
    data, n_bytes, found = check_data(source)
    problems += found
    nodes = [one.node for one in examined]
    problems += preflight.problems(nodes, options.workers, options.allow_shared_host, options.allow_mixed_versions)
    problems += check_ranks(examined, n_bytes)
    problems += check_clocks([node.host for node in nodes], clocks, *between)
    print(table(examined))
    print(f"\nMPI      {mpi}\nresults  {results}\ndata     {data}\n")
    for problem in sorted(problems, key=lambda problem: not problem.fatal):
        print(problem)
    fatal = sum(problem.fatal for problem in problems)
    print("a study would not run here" if fatal else "a study can run here")
    return Exit.USAGE if fatal else Exit.DONE


def run(transport: Transport, launch: Launch, options: RunOptions, source: Source) -> Exit:
    """One rank's part; rank 0 speaks for all."""
    examined = transport.gather(examine(transport.rank, options))
    before = time.time()
    transport.broadcast(None)  # so that all clocks are read between two moments of rank 0's
    clocks = transport.gather(time.time())
    between = (before, time.time())
    status = report(examined, clocks, between, launch, options, source) if transport.rank == 0 else Exit.DONE
    transport.close(status)
    return status


def main(arguments: Sequence[str] | None = None) -> Exit:
    launch = launched()
    parser = Parser(prog=PROG, description="Would a study run here? Give the options of the run, and its launcher.")
    try:
        add_settings(parser, Source)
        add_settings(parser, RunOptions)
        namespace = parser.parse_args(arguments)
        options, source = from_namespace(RunOptions, namespace), from_namespace(Source, namespace)
        transport = connect(launch, options.expect_nodes)
    except UsageError as error:
        if launch.rank == 0:
            print(f"{PROG}: {error}", file=sys.stderr)
        return Exit.USAGE if launch.rank == 0 else Exit.DONE
    try:
        if not options.keep_binding:
            preflight.widen_binding(transport, launch.launcher)  # as the run will do
        return run(transport, launch, options, source)
    except Exception:
        traceback.print_exc()
        transport.abort(Exit.ERROR)  # the other ranks wait for this one


if __name__ == "__main__":
    outlive_readers()
    sys.exit(main())
