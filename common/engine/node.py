"""What one rank does from its start to its end; rank 0 does a little more.

all ranks    find devices, agree that all is well, share the data, run an agent
rank 0       load the data, open the journal, run the coordinator, report
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import cloudpickle

from common.cluster.devices import CPU, Device, choose, grouped
from common.cluster.launch import launched
from common.cluster.preflight import Node, check, memory_problems, survey, widen_binding
from common.cluster.shared_arrays import SharedArrays, specs_of
from common.cluster.slurm import end_of_job
from common.cluster.transport import Transport
from common.engine.agent import Agent
from common.engine.coordinator import Coordinator, slots_of
from common.engine.here import AgentHere
from common.engine.loop import Leader, loop
from common.engine.messages import Stop, ToCoordinator
from common.engine.progress import Progress, duration
from common.engine.queue import Costs
from common.engine.study import Shard, Study
from common.engine.worker import Setup
from common.errors import Exit, UsageError
from common.experiment import Data, Experiment
from common.settings import result_settings, setting
from common.storage.journal import Journal
from common.storage.provenance import code_and_libraries, commit, versions
from common.storage.table import last_line
from common.storage.waiting import waiting
from common.trial import Outcome, Place

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunOptions:
    """How a study is run; none of it changes the results."""

    gpu: str | None = setting(
        None, "GPUs of each node: positions in the visible list (0,1), GPU-/MIG- names, all, or none; 0,0 puts two "
        "workers on one (default: the first GPU, else the CPU)"
    )  # fmt: skip
    workers: int | None = setting(
        None, "CPU workers per node, with --gpu none (default: one per core)", low=1, high=4096
    )
    threads: int = setting(1, "numerical threads per worker; another number changes the last bits", low=1, high=1024)
    # The second spelling of an option is its name of the first release, kept for one more.
    max_batches_per_worker: int = setting(
        0, "replace a worker after this many batches of work; 0 keeps it", low=0, metavar="N",
        flag="--max-batches-per-worker/--batch",
    )  # fmt: skip
    results: Path | None = setting(None, "folder of the study (default results/ and the program's name)")
    restart: bool = setting(False, "set the study in the results folder aside and begin anew")
    retry_failed: bool = setting(False, "evaluate again the trials that have failed")
    trial_timeout: float | None = setting(
        None, "seconds without a result after which a trial is killed and tried again", low=0.001, metavar="S",
        flag="--trial-timeout/--deadline",
    )  # fmt: skip
    shard: str = setting(
        "1/1", "run shard K of N, in a results folder of its own; python -m common.merge joins them", metavar="K/N",
        flag="--shard/--share",
    )  # fmt: skip
    grace: float = setting(30.0, "seconds for running trials when the job is told to stop", low=0.0, metavar="S")
    walltime_margin: float = setting(
        60.0, "begin no batch that would end later than this before the time limit of a Slurm job", low=0.0, metavar="S"
    )
    heartbeat_timeout: float = setting(
        20.0, "seconds without a heartbeat after which a node counts as dead; 0 for never", low=0.0, metavar="S",
        flag="--heartbeat-timeout/--silence",
    )  # fmt: skip
    expect_nodes: int | None = setting(None, "refuse to run on another number of nodes", low=1, metavar="N")
    keep_binding: bool = setting(False, "leave a rank on the cores that mpirun has bound it to")
    allow_shared_host: bool = setting(False, "let several ranks of one host use its GPUs")
    allow_mixed_versions: bool = setting(
        False, "run although nodes have different versions of this package or of libraries"
    )
    verbose: bool = setting(False, "log more, and show what the workers print", flag="-v/--verbose")
    quiet: bool = setting(False, "log errors only", flag="-q/--quiet")
    devices_per_worker: int = 1  # no option of programs: what they compute uses one device

    def __post_init__(self) -> None:
        Shard.parse(self.shard)


@dataclass(frozen=True)
class Ended:
    """How a study ended.

    outcomes: on rank 0, of all known trials in the order asked. cause: why it could not go on. stopped_by: a signal.
    """

    status: Exit
    outcomes: Sequence[Outcome] = ()
    cause: str = ""
    stopped_by: int | None = None


def run(
    experiment: Experiment, name: str, options: RunOptions, transport: Transport, host: str, report: bool = True
) -> Ended:
    """One rank's part of the study called `name`. report: whether a finished one makes tables and figures.

    Raises UsageError, the same on all ranks, before anything is written.
    """
    started = time.monotonic()
    with ExitStack() as stack:
        devices: list[Device] = []
        note, packed = "", b""
        problem = None
        widened = "" if options.keep_binding else widen_binding(transport, launched().launcher)
        if widened and transport.rank == 0:
            log.info(widened)
        try:
            devices, note = (
                ([CPU], "") if options.workers == 0 else choose(options.gpu, options.workers, options.threads)
            )
            devices = devices if options.workers == 0 else grouped(devices, options.devices_per_worker)
            experiment.check(devices[0].kind)
            packed = b"" if options.workers == 0 else _packed(experiment)
        except UsageError as error:
            problem = str(error)
        _agree(transport, host, problem)
        if note and transport.rank == 0:
            log.info(note)
        places = [Place(host, transport.rank, slot, device.name) for slot, device in enumerate(devices)]
        nodes = transport.gather(survey(places, options.threads, code_and_libraries(type(experiment).__module__)))

        data: Data = {}
        journal = None
        if transport.rank == 0:
            try:
                allowed = options.allow_shared_host, options.allow_mixed_versions
                check(nodes, options.workers, *allowed)
                data = experiment.data()
                header = _header(experiment, name, data)
                folder = options.results or Path("results") / name
                with waiting(f"results folder {folder} has not answered"):
                    journal = stack.enter_context(closing(Journal(folder, header, options.restart)))
            except UsageError as error:
                problem = str(error)
        specs = transport.broadcast(specs_of(data))
        shared = None
        try:
            shared = stack.enter_context(closing(SharedArrays.allocate(specs)))
        except UsageError as error:
            problem = problem or str(error)
        _agree(transport, host, problem)
        assert shared is not None
        for array_name, array in sorted(shared.arrays.items()):
            if transport.rank == 0:
                array[...] = data[array_name]
            transport.broadcast_array(array)

        wanted = experiment.shared_buffers(devices[0].kind, shared.arrays, len(devices))
        buffers = stack.enter_context(closing(SharedArrays.allocate_what_fits(wanted)))
        if len(buffers.specs) < len(wanted):
            log.info(
                "%s: room for %d of %d shared buffers of %d MiB", host, len(buffers.specs), len(wanted),
                sum(spec.nbytes for spec in wanted.values()) >> 20,
            )  # fmt: skip

        def tell(message: ToCoordinator) -> None:
            transport.send(0, message)

        agent: Agent | AgentHere
        if options.workers == 0:
            agent = AgentHere(tell, experiment, shared.arrays)
        else:
            agent = Agent(
                tell,
                Setup(packed, shared.specs, "", os.getpid(), buffers.specs),
                devices,
                places,
                threads=options.threads * (options.devices_per_worker if devices[0].kind == "cpu" else 1),
                deadline=options.trial_timeout,
                recycle=options.max_batches_per_worker,
            )
        stack.callback(agent.close)
        if journal is None:
            loop(transport, agent)
            return Ended(Exit.DONE)  # rank 0 speaks for all
        try:
            return _lead(experiment, options, transport, journal, shared.arrays, agent, nodes, started, report)
        except UsageError:  # found by this rank alone, while the others wait for work
            for rank in range(1, transport.size):
                transport.send(rank, Stop())
            raise


def _lead(
    experiment: Experiment,
    options: RunOptions,
    transport: Transport,
    journal: Journal,
    data: Data,
    agent: Agent | AgentHere,
    nodes: list[Node],
    started: float,
    report: bool,
) -> Ended:
    """Rank 0's part once everything stands."""
    known = journal.history.results
    if options.retry_failed:
        known = {key: result for key, result in known.items() if not result.failed}
    study = Study(
        experiment.searches(), journal.history.trials, known, Shard.parse(options.shard), options.retry_failed
    )
    slots = slots_of([node.places for node in nodes])
    end = end_of_job()
    end = None if end is None else end - options.walltime_margin
    most_workers = max(len(node.places) for node in nodes)
    costs = Costs(experiment.cost, experiment.split_batch, lambda batch: experiment.shared_cost(batch, most_workers))
    coordinator = Coordinator(study, journal, transport.send, slots, costs, options.grace, end, started)
    journal.note(run={
        "command": sys.argv, "versions": versions(), "commit": commit(), "time": time.strftime("%FT%T%z"),
        "threads": options.threads, "slots": [str(place) for place in slots.values()],
        "n_trials": experiment.n_trials(),
    })  # fmt: skip
    log.info(
        "%d slots on %d node%s; %d of %s trials known", len(slots), transport.size, "s" * (transport.size > 1),
        study.n_done, experiment.n_trials() or study.n_asked,
    )  # fmt: skip
    for problem in memory_problems(nodes, (experiment.memory_bytes(trial, data) for trial in study.open_trials())):
        log.warning(problem.text)
    progress = Progress(experiment.n_trials(), study.n_done, options.quiet)
    try:
        loop(transport, agent, Leader(coordinator, progress, study))
    finally:
        progress.close()
    outcomes = study.outcomes()
    failed = [outcome for outcome in outcomes if outcome.result.failed]
    if not study.finished:
        journal.note(end={"complete": False, "seconds": round(time.monotonic() - started, 3)})
        if study.n_open == 0:
            print(f"shard {options.shard} is done: {study.n_done} trials in {journal.folder}")
            return Ended(Exit.FAILED_TRIALS if failed else Exit.DONE, outcomes)
        if left_open := coordinator.left_open:
            key, reason = next(iter(left_open.items()))
            log.warning("%d trials fit no slot of this job, such as %s: %s", len(left_open), key, reason)
        if coordinator.n_too_long:
            log.warning("%d batches were not begun, as the job's time limit is near", coordinator.n_too_long)
        elif coordinator.stopped_by is None and not left_open:
            log.error("no worker is left; the first that ended:\n%s", coordinator.first_cause)
            return Ended(Exit.ERROR, outcomes, coordinator.first_cause)
        log.warning("stopped with %d of %d trials done: run the same command to continue", study.n_done, study.n_asked)
        return Ended(Exit.STOPPED, outcomes, "the job's time limit is near", coordinator.stopped_by)
    if report:
        experiment.report(outcomes, study.conclusions(), data, journal.folder)
    seconds = time.monotonic() - started
    journal.note(end={"complete": True, "seconds": round(seconds, 3), "failed": len(failed)})
    if report:
        print(f"time taken: {duration(seconds)}")
        print(f"results: {journal.folder}")
    for outcome in failed:
        result = outcome.result
        log.error("failed: trial %s at %s: %s", result.key, result.place, last_line(result.error))
    return Ended(Exit.FAILED_TRIALS if failed else Exit.DONE, outcomes)


def _packed(experiment: Experiment) -> bytes:
    """The experiment as workers get it: classes and functions of a script or a notebook go by value.

    Raises UsageError where it holds what cannot be sent to another process.
    """
    try:
        return cloudpickle.dumps(experiment)
    except Exception as error:  # whatever the thing's own pickling raises
        names = (name for name, value in vars(experiment).items() if not _can_be_sent(value))
        raise UsageError(
            f"{next(names, 'the class')} of {type(experiment).__name__} cannot be sent to its workers ({error}): "
            "make it in objective() instead"
        ) from error


def _can_be_sent(thing: object) -> bool:
    try:
        cloudpickle.dumps(thing)
    except Exception:
        return False
    return True


def _agree(transport: Transport, host: str, problem: str | None) -> None:
    """Raise UsageError on every rank if any has a problem."""
    problems = transport.gather((host, problem))
    first = next((f"{where}: {what}" if transport.size > 1 else what for where, what in problems if what), None)
    if (first := transport.broadcast(first)) is not None:
        raise UsageError(first)


def _header(experiment: Experiment, name: str, data: Data) -> dict[str, object]:
    settings = {"experiment": name, **result_settings(experiment)}
    if data:
        settings["data_sha256"] = experiment.digest(data)
    return {"settings": settings, "versions": versions(), "commit": commit(), "command": sys.argv}
