"""One rank's part of a study, from its start to its end; rank 0 leads.

all ranks    find devices, agree that all is well, share the data, run an agent
rank 0       load the data, open the journal, run the coordinator, report
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

from mpitune.devices.choose import CPU, Device, choose, environment, free_memory
from mpitune.earlier.studies import succeeds
from mpitune.engine import worker
from mpitune.engine.agent import Agent
from mpitune.engine.inline_agent import InlineAgent
from mpitune.engine.loop import loop
from mpitune.engine.messages import Stop
from mpitune.engine.preflight import Node, agree_on_versions, check, survey, widen_binding
from mpitune.engine.rank_zero import Ended, Finish, RankPart, RankZero
from mpitune.errors import Exit, StudyError, UsageError
from mpitune.experiment import Data, Experiment
from mpitune.memory.shared_arrays import MemoryFile, SharedArrays, specs_of
from mpitune.options import RunOptions
from mpitune.port import WantsCores
from mpitune.processes.fork_server import server_for
from mpitune.processes.process import installed_modules_of, sendable
from mpitune.processes.stops import Stopped, ending_at_stops
from mpitune.ranks.launch import host_name, launched
from mpitune.ranks.transport import Transport
from mpitune.settings import result_settings
from mpitune.storage.journal import Journal, join, require_unused
from mpitune.storage.provenance import code_and_libraries, digest
from mpitune.track.tracker import require
from mpitune.trial import Place

log = logging.getLogger(__name__)


def run(
    experiment: Experiment, name: str, *, options: RunOptions, transport: Transport, finish: Finish | None
) -> Ended:
    """One rank's part of the study called `name`; rank 0 needs its folder in `options`.

    `finish` is called when a study is done; None: the study makes no tables and figures.

    Raises:
        UsageError: the same on all ranks, before anything is written.
    """
    host = host_name()
    with ExitStack() as stack:
        kept = stack.enter_context(ExitStack())
        stack.push(partial(_settle, transport))
        part = _RankSteps(experiment, name, options, transport, time.monotonic(), host, stack, kept)
        if transport.size > 1:
            modules = [kind.__module__ for kind in type(experiment).__mro__ if issubclass(kind, Experiment)]
            agree_on_versions(transport, host, code_and_libraries(*modules))
        devices, packed, wait = part.prepare()
        places = [Place(host, transport.rank, slot, device.name) for slot, device in enumerate(devices)]
        preload = part.preload(packed)
        if preload:
            with environment(devices[0], 1, len(devices)):
                server_for(preload, os.environ)  # it imports while the data are loaded
        with transport.refusing_together(host):
            if wait is not None:
                wait()
        nodes = transport.gather(survey(places, options.threads))
        journal, shared = part.load_and_share(nodes, durable=finish is not None)
        agent = part.make_agent(devices, places, packed, shared, preload)
        if journal is None:
            loop(transport, agent)
            return Ended(Exit.DONE)  # rank 0 speaks for all
        try:
            return RankZero(part, journal, shared.arrays, nodes).run(agent, finish)
        except UsageError:  # found by this rank alone, while the others wait for work
            for rank in range(1, transport.size):
                transport.send(rank, Stop())
            raise


@contextmanager
def taking_part(name: str, transport: Transport) -> Iterator[None]:
    """What ends one rank's part of the study called `name` early ends all ranks: the others would wait for it for ever.

    Raises:
        UsageError: as all ranks do.
        Stopped: one of STOPS has come, and this is the only rank. So with any other exception.
    """
    try:
        with ending_at_stops():
            yield
    except UsageError:
        raise
    except BaseException as error:
        if transport.size == 1:
            transport.settle()  # what it has sent itself is nothing to the next study
            raise
        if not isinstance(error, Stopped | StudyError):
            traceback.print_exc()
        elif transport.rank == 0 or isinstance(error, StudyError):
            print(f"{name}: {error}", file=sys.stderr)
        transport.abort(Exit.STOPPED if isinstance(error, Stopped) else Exit.ERROR)


def _settle(transport: Transport, kind: type[BaseException] | None, *_: object) -> None:
    """All ranks have closed what they had open, unless the study breaks off: then the others might wait for ever."""
    if kind is None or issubclass(kind, UsageError):
        transport.settle()


@dataclass(frozen=True)
class _RankSteps(RankPart):
    """The steps of one rank, in their order; `stack`, then `kept` close what they open."""

    host: str
    stack: ExitStack
    kept: ExitStack

    @cached_property
    def job(self) -> str:
        """A name that no other job has, in words that people know."""
        slurm = "-".join(filter(None, map(os.environ.get, ("SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID"))))
        return f"{slurm or self.host}-{os.getpid()}-{os.urandom(3).hex()}"

    def prepare(self) -> tuple[list[Device], bytes, Callable[[], None] | None]:
        """A device for each slot, the experiment as workers get it, and what waits for the end of its check.

        If one rank fails, all raise UsageError.
        """
        options, leads = self.options, self.transport.rank == 0
        if (widened := widen_binding(self.transport, launched().launcher)) and leads:
            log.info(widened)
        devices, note = [CPU], ""
        with self.transport.refusing_together(self.host):
            if options.workers != 0:
                devices, note = choose(options.gpu, options.workers, options.threads)
            try:
                wait = self.experiment.check(devices[0].kind, devices[0].visible)
            except WantsCores as why:
                devices, note = choose("none", None, options.threads)[0], str(why)
                wait = self.experiment.check(CPU.kind, CPU.visible)
            kind, fix = type(self.experiment).__name__, "make it in objective() instead"
            packed = b"" if options.workers == 0 else sendable(kind, self.experiment, fix)
        if note and leads:
            log.info(note)
        return devices, packed, wait

    def preload(self, packed: bytes) -> list[str]:
        """Modules for the server that forks workers: those that the experiment and its pickle name."""
        named = self.scheduling.preload
        forks = self.options.workers != 0 and named
        return [worker.__name__, *named, *installed_modules_of(packed)] if forks else []

    def load_and_share(self, nodes: list[Node], *, durable: bool) -> tuple[Journal | None, SharedArrays]:
        """The journal, on rank 0, and the data, in memory that the workers of this rank share."""
        options = self.options
        data: Data = {}
        journal = None
        with self.transport.refusing_together(self.host):
            if self.transport.rank == 0:
                check(nodes, options)
                require(options.track)
                data = self.experiment.data()
                header = _header(self.experiment, self.name, data)
                files = _files(self.experiment)
                require_unused(self.folder, files)
                follows = partial(succeeds, self.experiment, options, self.folder)
                if options.join:
                    journal = join(self.folder, header, self.job)
                else:
                    journal = Journal(
                        self.folder, header, options.restart, durable=durable, succeeds=follows, files=files or ()
                    )
                self.kept.push(journal.end)
        specs = self.transport.broadcast(specs_of(data))
        with self.transport.refusing_together(self.host):
            shared = self.stack.enter_context(closing(SharedArrays.allocate(specs)))
        for name, array in sorted(shared.arrays.items()):
            if self.transport.rank == 0:
                array[...] = data[name]
            self.transport.broadcast_array(array)
        return journal, shared

    def make_agent(
        self, devices: Sequence[Device], places: Sequence[Place], packed: bytes, shared: SharedArrays,
        preload: Sequence[str],
    ) -> Agent | InlineAgent:  # fmt: skip
        """The agent of this rank. Its workers start with their first batch."""
        options, tell = self.options, partial(self.transport.send, 0)
        if options.workers == 0:
            return InlineAgent(tell, self.experiment, shared.arrays, debug=options.debug)
        node_memory = self.stack.enter_context(closing(MemoryFile.of_size(0)))
        agent = Agent(
            tell, worker.Setup(packed, shared.specs, "", os.getpid(), node_memory, free_memory()),
            devices, places, options, preload=preload, plainly=self.scheduling.prints_plainly,
        )  # fmt: skip
        self.stack.callback(agent.close)
        return agent


def _header(experiment: Experiment, name: str, data: Data) -> dict[str, object]:
    settings = {"experiment": name, **result_settings(experiment)}
    if data and "data_sha256" not in settings:
        settings["data_sha256"] = digest(data)
    goal = experiment.reporting().goal
    return {"kind": experiment.kind, "settings": settings, **({"goal": goal} if goal else {})}


def _files(experiment: Experiment) -> Sequence[str] | None:
    """Those that its report writes, None where that is not known."""
    files = experiment.reporting().files
    return ("trials.csv",) if files is None and type(experiment).report is Experiment.report else files
