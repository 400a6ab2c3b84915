"""Would a study run here? Give it the options of the run, under the same launcher.

    mpirun ... python -m mpitune doctor [OPTIONS OF THE RUN]

Prints what every rank has, then each problem with its fix. Exit status 2 when the run could not work.
"""

from __future__ import annotations

import os
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mpitune.devices import probe
from mpitune.devices.choose import CPU, choose
from mpitune.engine import preflight
from mpitune.engine.preflight import Finding, Node
from mpitune.errors import Exit, UsageError, print_error
from mpitune.options import RunOptions
from mpitune.ranks.launch import connect, launched
from mpitune.ranks.transport import LocalTransport
from mpitune.settings import Parser, add_settings, from_namespace
from mpitune.storage.provenance import code_and_libraries
from mpitune.trial import Place

PROG = "python -m mpitune doctor"
GIB = 1 << 30


@dataclass(frozen=True)
class GpuInfo:
    """A GPU as the driver tells of it; memory in bytes."""

    name: str
    total: int
    free: int


@dataclass(frozen=True)
class Examined:
    """The findings of one rank: its host, its GPUs by device name, and the problems there."""

    node: Node
    versions: dict[str, str] = field(default_factory=code_and_libraries)
    gpus: dict[str, GpuInfo] = field(default_factory=dict)
    problems: list[Finding] = field(default_factory=list)


def examine(rank: int, options: RunOptions) -> Examined:
    """Find this rank's devices, and start processes on them to see what its workers would."""
    host = os.uname().nodename.split(".")[0]
    try:
        devices, _ = choose(options.gpu, options.workers, options.threads)
    except UsageError as error:
        return Examined(preflight.survey((), options.threads), problems=[Finding(f"{host}: {error}", fatal=True)])
    places = [Place(host, rank, slot, device.name) for slot, device in enumerate(devices)]
    examined = Examined(preflight.survey(places, options.threads))
    gpus = [device for device in dict.fromkeys(devices) if device != CPU]
    probes = [(device, probe.begin(device, "gpu", threads=options.threads)) for device in gpus]
    for device, process in probes:
        answer = probe.answer(process)
        if wrong := answer.get("error"):
            text = f"{host}: no worker can use {device.name} ({wrong}): look at nvidia-smi, and at the driver"
            examined.problems.append(Finding(text, fatal=True))
            continue
        gpu = examined.gpus[device.name] = GpuInfo(**answer)  # type: ignore[arg-type]
        if gpu.free < gpu.total / 2:
            taken = f"{(gpu.total - gpu.free) / GIB:.1f} of {gpu.total / GIB:.1f} GiB"
            text = f"{host}: other processes hold {taken} of {device.name}: nvidia-smi names them"
            examined.problems.append(Finding(text))
    return examined


def check_cores(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Hosts whose ranks have more threads than cores."""
    of_host: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        of_host[node.host].append(node)
    for host, there in of_host.items():
        wanted, cores = sum(map(preflight.cores_wanted, there)), max(node.cores for node in there)
        if wanted > cores and not any(node.pinned for node in there):
            n_workers = sum(len(node.places) for node in there)
            yield Finding(
                f"{host}: {n_workers} workers x {there[0].threads} threads would wait for each other on {cores} cores: "
                "give fewer --workers or --threads"
            )


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


def report(examined: Sequence[Examined], mpi: str, options: RunOptions) -> Exit:
    """Print everything. The status is Exit.USAGE when a problem is fatal."""
    problems: list[Finding] = []
    nodes = [seen.node for seen in examined]
    if mixed := preflight.mixed_versions([(seen.node.host, seen.versions) for seen in examined]):
        problems.append(Finding(mixed, fatal=True))
    problems += preflight.problems(nodes, options)
    problems += [*(problem for seen in examined for problem in seen.problems), *check_cores(nodes)]
    print(table(examined))
    print(f"\nMPI      {mpi}\n")
    for problem in sorted(dict.fromkeys(problems), key=lambda problem: not problem.fatal):
        print(problem)
    fatal = sum(problem.fatal for problem in problems)
    print("a study would not run here" if fatal else "a study can run here")
    return Exit.USAGE if fatal else Exit.DONE


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
        preflight.widen_binding(transport, launch.launcher)  # as the run will do
        examined = transport.gather(examine(transport.rank, options))
        mpi = "not used by one process"
        if not isinstance(transport, LocalTransport):
            from mpitune.ranks.mpi import library

            started = f"rank{'s' * (transport.size > 1)} started by {launch.launcher or 'a shell'}"
            mpi = f"{library()}, {transport.size} {started}"
        status = report(examined, mpi, options) if transport.rank == 0 else Exit.DONE
        transport.close()
        return status
    except Exception:
        traceback.print_exc()
        transport.abort(Exit.ERROR)  # the other ranks wait for this one
