"""Would a study run here? Give it the options of the run, under the same launcher.

    mpirun ... python -m mpitune doctor [OPTIONS OF THE RUN]

Prints what every rank has, then each problem with its fix. Exit status 2 when the run could not work.
"""

from __future__ import annotations

import itertools
import os
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mpitune.devices import probe
from mpitune.devices.choose import CPU, Device, choose
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
from mpitune.tools.programs import doctor_checks, kinds_of
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
    every = doctor_checks()
    broken: set[str] = set()
    asked = {}
    for number, device in enumerate(dict.fromkeys(devices)):
        wanted = kinds_of(every, device.kind) if number == 0 else {}
        asked[device] = [*(["gpu"] if device != CPU else []), *wanted]
    for device, what, answer in _answers(asked, options.threads):
        wrong = answer.get("error")
        needed_by = kinds_of(every, device.kind).get(what, [])
        if what == "gpu" and wrong:
            text = f"{host}: no worker can use {device.name} ({wrong}): look at nvidia-smi, and at the driver"
            examined.problems.append(Finding(text, fatal=True))
        elif what == "gpu":
            examined.gpus[device.name] = GpuInfo(**answer)  # type: ignore[arg-type]
        elif wrong:
            fix = "see requirements*.txt for versions that fit each other"
            whose = f"{', '.join(needed_by)} cannot run: " if needed_by else ""
            broken.update(needed_by)
            fatal = bool(needed_by) and broken == set(every)
            text = f"{host}: {what} does not work on {device.name} ({wrong}): {whose}{fix}"
            examined.problems.append(Finding(text, fatal))
        elif not answer["installed"]:
            text = f"{what} is not installed: what needs it cannot run until it is (see requirements*.txt)"
            examined.problems.append(Finding(f"{host}: {text}"))
    return examined


def _answers(asked: Mapping[Device, Sequence[str]], threads: int) -> Iterator[tuple[Device, str, dict[str, object]]]:
    """Answers of processes on the devices, one process at a time on each: some modes admit only one."""
    for turn in itertools.zip_longest(*asked.values()):
        processes = [
            (device, what, probe.begin(device, what, threads=threads))
            for device, what in zip(asked, turn, strict=True)
            if what
        ]
        for device, what, process in processes:
            yield device, what, probe.answer(process)


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


def report(examined: Sequence[Examined], clocks: list[float], between: tuple[float, float], launch: Launch,
           options: RunOptions, sources: Sequence[Any]) -> Exit:  # fmt: skip
    """Print everything. The status is Exit.USAGE when a problem is fatal."""
    mpi, problems = check_mpi(launch, dict(os.environ))
    results, of_results = check_results(options.results or Path("results"), options.join)
    problems += of_results
    n_bytes, lines = 0, []
    for source in sources:
        line, size, wrong = source.examined()
        lines.append(f"data     {line}\n")
        n_bytes = max(n_bytes, size)
        problems += [Finding(*what) for what in wrong]
    nodes = [seen.node for seen in examined]
    problems += preflight.problems(nodes, options)
    problems += check_ranks(examined, n_bytes)
    before, after = between
    problems += check_clocks([node.host for node in nodes], clocks, before=before, after=after)
    print(table(examined))
    print(f"\nMPI      {mpi}\nresults  {results}\n{''.join(lines)}")
    for problem in sorted(dict.fromkeys(problems), key=lambda problem: not problem.fatal):
        print(problem)
    fatal = sum(problem.fatal for problem in problems)
    print("a study would not run here" if fatal else "a study can run here")
    return Exit.USAGE if fatal else Exit.DONE


def run(transport: Transport, launch: Launch, options: RunOptions, sources: Sequence[Any]) -> Exit:
    """One rank's part; rank 0 speaks for all."""
    examined = transport.gather(examine(transport.rank, options))
    before = time.time()
    transport.broadcast(None)  # so that all clocks are read between two moments of rank 0's
    clocks = transport.gather(time.time())
    between = (before, time.time())
    status = Exit.DONE
    if transport.rank == 0:
        status = report(examined, clocks, between, launch, options, sources)
    transport.close(status)
    return status


def main(arguments: Sequence[str] | None = None) -> Exit:
    """The command line. Returns the exit status of this rank."""
    launch = launched()
    parser = Parser(prog=PROG, description="Would a study run here? Use the launcher and the options of the study.")
    kinds = list(dict.fromkeys(checks.settings for checks in doctor_checks().values() if checks.settings))
    try:
        for kind in (*kinds, RunOptions):
            add_settings(parser, kind)
        namespace = parser.parse_args(arguments)
        options = from_namespace(RunOptions, namespace)
        sources = [from_namespace(kind, namespace) for kind in kinds]
        transport = connect(launch, options.expect_nodes)
    except UsageError as error:
        return print_error(PROG, error, launch.rank)
    try:
        if not options.keep_binding:
            preflight.widen_binding(transport, launch.launcher)  # as the run will do
        return run(transport, launch, options, sources)
    except Exception:
        traceback.print_exc()
        transport.abort(Exit.ERROR)  # the other ranks wait for this one
