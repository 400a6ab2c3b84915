"""What rank 0 tells people of a running study: lines of the log, and a small file for `mpitune status`."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mpitune.engine.dispatch import Dispatch
from mpitune.engine.slots import SlotState
from mpitune.engine.study import Study
from mpitune.errors import duration, printable, printable_lines
from mpitune.options import RunOptions
from mpitune.ranks.launch import host_name
from mpitune.storage.files import STATUS_FILE, read_at_most, written_whole
from mpitune.trial import is_group

LINE_SECONDS = 9.0  # so that news come within ten seconds, although a look takes time too
FILE_SECONDS = 1.0
AT_TRIALS = "running"
MOST_SHOWN = 50  # running trials of an overview, the longest first

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Running:
    """A trial that is being computed: its place, since how many seconds, and how far it is, as words."""

    key: str
    place: str
    seconds: float
    step: str


@dataclass(frozen=True)
class Overview:
    """A study at one moment."""

    done: int  # trials, or stages of them, that are done
    failed: int  # of those that are done, without those of other jobs
    total: int  # trials that there will be, as far as is known now
    slots: int  # that are in use
    n_running: int  # trials that are being computed
    waiting: Mapping[str, int]  # what other slots do, such as "starting", and how many do it
    running: Sequence[Running]  # trials that are being computed, the longest first, `MOST_SHOWN` at most
    left: float | None  # seconds until all known trials are done, a guess; None where that is not known


def overview(study: Study, dispatch: Dispatch, now: float, *, failed: int, total: int | None) -> Overview:
    """The study now, by the coordinator's clock; see `Overview`. `total`: None where that is not known."""
    n_asked = study.n_asked
    states = list(dispatch.slots.values())
    computing = sorted((state for state in states if state.is_computing), key=lambda state: state.assigned[0].since)
    others = [state.step.unit for state in states if state.assigned and state.step and not state.is_computing]
    unasked = max(0, (total or 0) - n_asked)
    left = None
    if not study.waits:  # else other jobs do a part, of whose pace nothing is known here
        left = _time_left(dispatch, now, unasked=unasked, n_open=n_asked - study.n_done)
    return Overview(
        done=study.n_done,
        failed=failed,
        total=n_asked + unasked,
        slots=len(states),
        n_running=sum(_n_at_once(state) for state in computing),
        waiting=dict(Counter(others)),
        running=[_running(state, now) for state in computing[:MOST_SHOWN]],
        left=left,
    )


def _running(state: SlotState, now: float) -> Running:
    assigned, step = state.assigned[0], state.step
    n, n_open = len(assigned.waited.batch), len(assigned.open)
    together = 1 if step is None else min(step.trials, n_open)
    words = [f"trial {n - n_open + 1} of {n} of its batch"] if n > 1 and together < n else []
    words = [f"{n_open} trials together"] if _n_at_once(state) > 1 else words
    words += [str(step)] if step is not None and step.unit else []
    return Running(next(iter(assigned.open), ""), str(state.place), round(now - assigned.since, 1), ", ".join(words))


def _n_at_once(state: SlotState) -> int:
    """How many trials a slot evaluates as one."""
    assigned = state.assigned[0]
    return len(assigned.open) if is_group(assigned.waited.batch) else 1


def _time_left(dispatch: Dispatch, now: float, *, unasked: int, n_open: int) -> float | None:
    """Seconds until all is done, if slots that become free take the costliest batch that waits.

    The guess is the work that is left divided by the number of slots, or its longest part if that takes longer (R. L.
    Graham, 1969, gives both as bounds).
    """
    pace, queue = dispatch.pace, dispatch.queue
    if pace.seconds_per_cost is None or not dispatch.slots:
        return None
    left = [pace.left(state, now) for state in dispatch.slots.values()]
    work = sum(left) + queue.cost
    work += unasked * work / n_open if n_open else 0.0
    return round(pace.seconds_per_cost * max(work / len(left), queue.longest, *left), 1)


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # a log that cannot be written ends no study
            print(printable_lines(self.format(record)), file=sys.stderr)


def start_logging(rank: int, options: RunOptions) -> None:
    """Log to stderr with rank and host, from now on."""
    handler = _Stderr()
    handler.setFormatter(logging.Formatter(f"%(asctime)s rank {rank} {host_name()} %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("mpitune")
    logger.handlers[:] = [*(other for other in logger.handlers if not isinstance(other, _Stderr)), handler]
    logger.propagate = False
    logger.setLevel(logging.ERROR if options.quiet else logging.DEBUG if options.verbose else logging.INFO)


@contextmanager
def logging_here(rank: int, options: RunOptions) -> Iterator[None]:
    """As `start_logging`, in this context: a script's logging is as it was, and its own handlers hear all the time."""
    logger = logging.getLogger("mpitune")
    handlers, propagate, level = logger.handlers[:], logger.propagate, logger.level
    start_logging(rank, options)
    try:
        yield
    finally:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


@dataclass(frozen=True)
class Seen:
    """The last words of rank 0: its Unix time, its activity, and the state of the study."""

    time: float
    doing: str
    overview: Overview


class StatusFile:
    """What rank 0 tells of a running study, for readers on any machine that sees the results folder.

    It is replaced whole, but not made durable, and removed at the end. Where it cannot be written, there is none.
    """

    def __init__(self, folder: Path):
        self._path = folder / STATUS_FILE

    def write(self, doing: str, overview: Overview) -> None:
        """Replace the file. `doing`: AT_TRIALS, or what the study waits for."""
        with suppress(OSError), written_whole(self._path, durable=False) as file:
            file.write(msgspec.json.encode(Seen(round(time.time(), 3), doing, overview)))

    def remove(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def read_status_file(folder: Path) -> Seen | None:
    """None where rank 0 has said nothing, or somebody else has written the file."""
    try:
        return msgspec.json.decode(read_at_most(folder / STATUS_FILE, 1 << 20), type=Seen)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None


class Progress:
    """Shows an overview when one is due, and writes it to `file`. No thread: `update` looks at the clock."""

    def __init__(self, quiet: bool, file: StatusFile):
        self._quiet, self._file = quiet, file
        self._drawn, self._written = time.monotonic(), -FILE_SECONDS

    def update(self, overview: Callable[[], Overview], last: bool = False) -> None:
        """Show how the study stands, if that is due or it is the last time."""
        now = time.monotonic()
        draw = not self._quiet and (last or now - self._drawn >= LINE_SECONDS)
        write = now - self._written >= FILE_SECONDS
        if not draw and not write:
            return
        seen = overview()
        if write:
            self._written = now
            self._file.write(AT_TRIALS, seen)
        if draw:
            self._drawn = now
            note = note_of(seen)
            log.info("%d of %d trials%s", seen.done, seen.total, f", {note}" if note else "")


def note_of(seen: Overview) -> str:
    """What an overview says beside its counts of trials, in a line."""
    words = [f"{seen.failed} failed"] if seen.failed else []
    words += [f"{seen.n_running} running"] if seen.n_running else []
    words += [f"{n} {what}" for what, n in seen.waiting.items()]
    if seen.left and seen.done < seen.total:  # none is left by the guess where the last trials take longer
        words.append(f"{duration(seen.left)} left")
    note = ", ".join(words)
    if seen.running:
        longest = seen.running[0]
        far = f", {longest.step}" if longest.step else ""
        note += f"; longest: {longest.key} at {longest.place} for {duration(longest.seconds)}{far}"
    return printable(note)
