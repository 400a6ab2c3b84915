"""Would a study run here? Give it the options of the run, under the same launcher.

    mpirun ... python -m mpitune doctor [OPTIONS OF THE RUN]

Prints what every rank has, then each problem with its fix. Exit status 2 when the run could not work.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mpitune.devices import probe, rates
from mpitune.devices.devices import CPU, Device, choose, visible_gpus, why_no_gpu
from mpitune.devices.selfcheck import LIMIT_S
from mpitune.engine import preflight
from mpitune.engine.options import RunOptions
from mpitune.engine.preflight import Finding
from mpitune.errors import Exit, UsageError, print_error
from mpitune.experiment import DoctorChecks
from mpitune.ranks.launch import Launch, connect, launched
from mpitune.ranks.transport import Transport
from mpitune.settings import Parser, add_settings, from_namespace, setting
from mpitune.storage.provenance import code_and_libraries, processor
from mpitune.tools.doctor_checks import (
    GIB,
    Examined,
    GpuInfo,
    Measured,
    check_clocks,
    check_mpi,
    check_ranks,
    check_results,
    memory_of_jobs_that_have_gone,
)
from mpitune.tools.doctor_gpus import advice, check_sharing, leftovers
from mpitune.tools.doctor_programs import kinds_of, programs
from mpitune.trial import Place

PROG = "python -m mpitune doctor"
SELF_CHECK = ("host", "device", "program", "self-check", "found", "seconds")
BENCHMARK = ("host", "device", "program", "what", "measured", "assumed")
BENCHMARK_S = 100.0  # for each model of device, from the beginning; a process that still measures is ended 10 s later


@dataclass(frozen=True)
class Wishes:
    """Further checks that can be asked for."""

    self_check: bool = setting(False, "check again that the code for GPUs is right on these devices; prints a table")
    benchmark: bool = setting(False, "measure and keep the rates of training steps, within two minutes a model")
    validate: bool = setting(False, "run all that a machine with a GPU can show, within 20 minutes, into one folder")


def examine(rank: int, options: RunOptions, wishes: Wishes = Wishes()) -> Examined:
    """Find this rank's devices, and start processes on them to see what its workers would."""
    begin, host = time.monotonic(), os.uname().nodename.split(".")[0]
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
    examined.problems.extend(leftovers(host))
    examined.problems.extend(memory_of_jobs_that_have_gone(host))
    every = programs()
    broken: set[str] = set()
    asked = {}
    for number, device in enumerate(dict.fromkeys(devices)):
        wanted = kinds_of(every, device.kind) if number == 0 else {}
        asked[device] = [*(["gpu"] if device != CPU else []), *wanted]
    for device, what, answer in _answers(asked, options.threads):
        wrong = answer.get("error")
        needed_by = kinds_of(every, device.kind).get(what, [])
        if what == "gpu" and wrong:
            fix = advice(str(wrong), "look at nvidia-smi, and at the driver")
            examined.problems.append(Finding(f"{host}: no worker can use {device.name} ({wrong}): {fix}", fatal=True))
        elif what == "gpu":
            examined.gpus[device.name] = GpuInfo(**answer)  # type: ignore[arg-type]
        elif wrong:
            fix = advice(str(wrong), "see requirements*.txt for versions that fit each other")
            whose = f"{', '.join(needed_by)} cannot run: " if needed_by else ""
            broken.update(needed_by)
            fatal = bool(needed_by) and broken == set(every)
            text = f"{host}: {what} does not work on {device.name} ({wrong}): {whose}{fix}"
            examined.problems.append(Finding(text, fatal))
        elif not answer["installed"]:
            text = f"{what} is not installed: what needs it cannot run until it is (see requirements*.txt)"
            examined.problems.append(Finding(f"{host}: {text}"))
    if wishes.self_check:
        for device in dict.fromkeys(devices):
            if device != CPU:
                examined.checked.extend(_checked(host, device, every, options.threads))
    if wishes.benchmark:
        models = {device: examined.gpus[device.name].name for device in devices if device.name in examined.gpus}
        if CPU in devices:
            models[CPU] = processor()
        one_of_each = {model: device for device, model in reversed(models.items())}
        for n, (model, device) in enumerate(one_of_each.items(), start=1):
            end = begin + n * BENCHMARK_S
            examined.measured.extend(
                _measured(examined, host, device, model=model, every=every, threads=options.threads, end=end)
            )
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


def _checked(host: str, device: Device, every: Mapping[str, DoctorChecks], threads: int) -> Iterator[tuple[str, ...]]:
    """Rows of the table of self-checks, made again: host, device, program, check, fault, seconds."""
    for name, checks in every.items():
        for function in checks.self_checks:
            answer = probe.answer(probe.begin(device, function, threads=threads, arguments=["again"]), 2 * LIMIT_S)
            findings = dict(answer.get("findings") or {})  # type: ignore[call-overload]
            if ended := answer.get("error") or answer.get("ended"):
                findings["the check itself"] = str(ended)
            seconds = f"{answer.get('seconds', 0.0):.1f}"
            for finding, wrong in findings.items():
                yield host, device.name, name, finding, wrong or "passed", seconds


def _measured(
    examined: Examined,
    host: str,
    device: Device,
    *,
    model: str,
    every: Mapping[str, DoctorChecks],
    threads: int,
    end: float,
) -> Iterator[Measured]:
    """Measurements of each program on a device, one after the other, until `end`; a failure is a problem.

    What a program measured before it failed, or before its time was over, counts.
    """
    functions = [(name, function) for name, checks in every.items() for function in checks.benchmarks]
    for number, (name, function) in enumerate(functions):
        now = time.monotonic()
        deadline = now + (end - now) / (len(functions) - number)
        process = probe.begin(device, function, threads=threads, arguments=[device.kind, f"{deadline:.3f}"])
        answer: dict[str, Any] = probe.answer(process, max(deadline - now, 0) + 10)
        if wrong := answer.get("error"):
            examined.problems.append(Finding(f"{host}: {name} could not be measured on {device.name} ({wrong})"))
        elif ended := answer.get("ended"):
            examined.problems.append(Finding(f"{host}: {name} was measured on {device.name} in part ({ended})"))
        if not wrong:
            yield Measured(host, model, device.kind, name, answer["rows"], answer["rates"])


def _kept(measured: Sequence[Measured]) -> Iterator[str]:
    """Keep the rates of each model of device; a line for each, or what prevents it."""
    for model, kind in dict.fromkeys((one.model, one.kind) for one in measured):
        programs = {one.program: one.rates for one in reversed(measured) if one.model == model}
        try:
            yield f"rates    {rates.keep(model, kind, programs)}: docs/gpus.md says where to send it"
        except OSError as error:
            yield f"rates    of {model} cannot be kept ({error.strerror})"


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
    return _aligned(rows)


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    used = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in used]
    lines = zip(*used, strict=True)
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def report(examined: Sequence[Examined], clocks: list[float], between: tuple[float, float], launch: Launch,
           options: RunOptions, sources: Sequence[Any]) -> Exit:  # fmt: skip
    """Print everything. The status is Exit.USAGE when a problem is fatal or a self-check failed."""
    mpi, problems = check_mpi(launch, dict(os.environ))
    results, found = check_results(options.results or Path("results"))
    problems += found
    n_bytes, lines = 0, []
    for source in sources:
        line, size, wrong = source.examined()
        lines.append(f"data     {line}\n")
        n_bytes = max(n_bytes, size)
        problems += [Finding(*what) for what in wrong]
    nodes = [one.node for one in examined]
    problems += preflight.problems(
        nodes,
        options.workers,
        allow_shared_host=options.allow_shared_host,
        allow_mixed_versions=options.allow_mixed_versions,
    )
    problems += check_ranks(examined, n_bytes)
    before, after = between
    problems += check_clocks([node.host for node in nodes], clocks, before=before, after=after)
    print(table(examined))
    print(f"\nMPI      {mpi}\nresults  {results}\n{''.join(lines)}")
    if checked := [row for one in examined for row in one.checked]:
        print(_aligned([SELF_CHECK, *checked]) + "\n")
    if measured := [of for one in examined for of in one.measured]:
        rows = [(of.host, of.model, of.program, *row) for of in measured for row in of.rows]
        print("\n".join([_aligned([BENCHMARK, *rows]), "", *_kept(measured), ""]))
    for problem in sorted(dict.fromkeys(problems), key=lambda problem: not problem.fatal):
        print(problem)
    fatal = sum(problem.fatal for problem in problems)
    print("a study would not run here" if fatal else "a study can run here")
    return Exit.USAGE if fatal or any(row[4] != "passed" for row in checked) else Exit.DONE


def run(transport: Transport, launch: Launch, options: RunOptions, sources: Sequence[Any], wishes: Wishes) -> Exit:
    """One rank's part; rank 0 speaks for all."""
    examined = transport.gather(examine(transport.rank, options, wishes))
    before = time.time()
    transport.broadcast(None)  # so that all clocks are read between two moments of rank 0's
    clocks = transport.gather(time.time())
    between = (before, time.time())
    status = report(examined, clocks, between, launch, options, sources) if transport.rank == 0 else Exit.DONE
    transport.close(status)
    return status


def main(arguments: Sequence[str] | None = None) -> Exit:
    """The command line. Returns the exit status of this rank."""
    launch = launched()
    parser = Parser(prog=PROG, description="Would a study run here? Use the launcher and the options of the study.")
    kinds = list(dict.fromkeys(checks.settings for checks in programs().values() if checks.settings))
    try:
        for kind in (*kinds, RunOptions, Wishes):
            add_settings(parser, kind)
        namespace = parser.parse_args(arguments)
        options, wishes = from_namespace(RunOptions, namespace), from_namespace(Wishes, namespace)
        sources = [from_namespace(kind, namespace) for kind in kinds]
        if wishes.self_check and not visible_gpus():
            raise UsageError(f"--self-check, but no GPU is visible{why_no_gpu()}: there is nothing to check")
        if wishes.validate:
            if find_spec("benchmarks") is None:
                raise UsageError("--validate needs the tests and benchmarks of the repository: run it in a clone of it")
            return Exit(subprocess.run([sys.executable, "-m", "benchmarks.validate"]).returncode)
        transport = connect(launch, options.expect_nodes)
    except UsageError as error:
        return print_error(PROG, error, launch.rank)
    try:
        if not options.keep_binding:
            preflight.widen_binding(transport, launch.launcher)  # as the run will do
        return run(transport, launch, options, sources, wishes)
    except Exception:
        traceback.print_exc()
        transport.abort(Exit.ERROR)  # the other ranks wait for this one
