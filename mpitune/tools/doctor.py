"""Would a study run here? Give it the options of the run, under the same launcher.

    mpirun ... python -m mpitune doctor [OPTIONS OF THE RUN]

Prints what every rank has, then each problem with its fix. Exit status 2 when the run could not work.
"""

from __future__ import annotations

import os
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from mpitune.devices import probe
from mpitune.devices.choose import CPU, choose
from mpitune.engine import preflight
from mpitune.engine.preflight import Finding
from mpitune.errors import Exit, UsageError, print_error
from mpitune.options import RunOptions
from mpitune.ranks.launch import Launch, connect, launched
from mpitune.ranks.transport import Transport
from mpitune.settings import Parser, add_settings, from_namespace
from mpitune.storage.provenance import code_and_libraries
from mpitune.tools.doctor_checks import (
    GIB,
    Examined,
    GpuInfo,
    check_clocks,
    check_mpi,
    check_ranks,
    check_results,
    check_sharing,
)
from mpitune.trial import Place

PROG = "python -m mpitune doctor"


def examine(rank: int, options: RunOptions) -> Examined:
    """Find this rank's devices, and start processes on them to see what its workers would."""
    host = os.uname().nodename.split(".")[0]
    try:
        devices, _ = choose(options.gpu, options.workers, options.threads)
    except UsageError as error:
        return Examined(
            preflight.survey((), options.threads, code_and_libraries()),
            problems=[Finding(f"{host}: {error}", fatal=True)],
        )
    places = [Place(host, rank, slot, device.name) for slot, device in enumerate(devices)]
    examined = Examined(preflight.survey(places, options.threads, code_and_libraries()))
    examined.problems.extend(check_sharing(host, devices))
    gpus = [device for device in dict.fromkeys(devices) if device != CPU]
    asked = [(device, probe.begin(device, "gpu", threads=options.threads)) for device in gpus]
    for device, process in asked:
        answer = probe.answer(process)
        if wrong := answer.get("error"):
            text = f"{host}: no worker can use {device.name} ({wrong}): look at nvidia-smi, and at the driver"
            examined.problems.append(Finding(text, fatal=True))
        else:
            examined.gpus[device.name] = GpuInfo(**answer)  # type: ignore[arg-type]
    return examined


def table(examined: Iterable[Examined]) -> str:
    """A row per rank and device: host, rank, device, workers, GPU and its memory, cores, memory."""
    rows = [("host", "rank", "device", "workers", "GPU", "GPU memory", "cores", "memory")]
    for rank, seen in enumerate(examined):
        node = seen.node
        of_host = (f"{node.cores} of {node.cores_there}", f"{node.memory / GIB:.1f} GiB")
        for device, n_workers in Counter(place.device for place in node.places).items() or [("none", 0)]:
            gpu = seen.gpus.get(device)
            described = (gpu.name, f"{gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} GiB") if gpu else ("", "")
            rows.append((node.host, str(rank), device, str(n_workers), *described, *of_host))
    used = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in used]
    lines = zip(*used, strict=True)
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def report(
    examined: Sequence[Examined], clocks: list[float], between: tuple[float, float], launch: Launch, options: RunOptions
) -> Exit:
    """Print everything. The status is Exit.USAGE when a problem is fatal."""
    mpi, problems = check_mpi(launch, dict(os.environ))
    results, of_results = check_results(options.results or Path("results"), options.join)
    problems += of_results
    nodes = [seen.node for seen in examined]
    problems += preflight.problems(nodes, options)
    problems += check_ranks(examined)
    before, after = between
    problems += check_clocks([node.host for node in nodes], clocks, before=before, after=after)
    print(table(examined))
    print(f"\nMPI      {mpi}\nresults  {results}\n")
    for problem in sorted(dict.fromkeys(problems), key=lambda problem: not problem.fatal):
        print(problem)
    fatal = sum(problem.fatal for problem in problems)
    print("a study would not run here" if fatal else "a study can run here")
    return Exit.USAGE if fatal else Exit.DONE


def run(transport: Transport, launch: Launch, options: RunOptions) -> Exit:
    """One rank's part; rank 0 speaks for all."""
    examined = transport.gather(examine(transport.rank, options))
    before = time.time()
    transport.broadcast(None)  # so that all clocks are read between two moments of rank 0's
    clocks = transport.gather(time.time())
    between = (before, time.time())
    status = Exit.DONE
    if transport.rank == 0:
        status = report(examined, clocks, between, launch, options)
    transport.close(status)
    return status


def main(arguments: Sequence[str] | None = None) -> Exit:
    """The command line. Returns the exit status of this rank."""
    launch = launched()
    parser = Parser(prog=PROG, description="Would a study run here? Use the launcher and the options of the study.")
    try:
        add_settings(parser, RunOptions)
        options = from_namespace(RunOptions, parser.parse_args(arguments))
        transport = connect(launch, options.expect_nodes)
    except UsageError as error:
        return print_error(PROG, error, launch.rank)
    try:
        if not options.keep_binding:
            preflight.widen_binding(transport, launch.launcher)  # as the run will do
        return run(transport, launch, options)
    except Exception:
        traceback.print_exc()
        transport.abort(Exit.ERROR)  # the other ranks wait for this one
