"""Exit statuses, the error that becomes one line on stderr, and texts in a form that can be shown."""

import json
import os
import re
import shlex
import sys
import sysconfig
import traceback
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum, IntEnum
from itertools import islice

MOST_NAMES = 20  # that a message lists
LONGEST_TEXT = 64 << 10  # characters of a text of a trial that are kept
LONGEST_LOGGED = 16 << 10  # characters of one message of a log


class Exit(IntEnum):
    """Exit statuses of all programs."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    FAILED_TRIALS = 3
    STOPPED = 75  # EX_TEMPFAIL: run the same command to continue


class Caller(Enum):
    """Who gives options: command line (a script's has few), `RunOptions`, arguments of a search, keys of a sweeper."""

    PROGRAM = 0
    OPTIONS = 1
    ARGUMENTS = 2
    HYDRA = 3
    SCRIPT = 4


# Options that are arguments of every search, and of `RunOptions`.
OF_SEARCH = ("gpu", "workers", "trial_timeout", "changed", "results", "adapt")
OF_SCRIPT = ("gpu", "workers", "results", "restart", "join")
OF_HYDRA = ("gpu", "workers", "trial_timeout", "results", "join", "retry_failed")
_callers: list[Caller] = []  # the first one counts, as calls nest; several threads may be in one; none: as PROGRAM
_kept = True


@contextmanager
def called_from(caller: Caller) -> Iterator[None]:
    """Advice in messages is for this caller from now on; within another one it stays for that one."""
    _callers.append(caller)
    try:
        yield
    finally:
        _callers.remove(caller)


def typed(name: str, value: object = True) -> str:
    """An option of `RunOptions` as who calls types it: --gpu none, or gpu="none"; "" where the call has no such."""
    caller = _callers[0] if _callers else Caller.PROGRAM
    if name == "debug" if caller is Caller.PROGRAM else caller is Caller.SCRIPT and name not in OF_SCRIPT:
        return ""
    if caller in (Caller.PROGRAM, Caller.SCRIPT):
        if isinstance(value, list):
            return f"--{name} {shlex.join(value)}"
        plain = str(value).replace(",", "").isalnum()
        return f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}" if plain else f" {value!r}")
    if caller is Caller.HYDRA:
        plain = isinstance(value, str) and value.isalnum()  # 0,1 would be two jobs
        return shlex.quote(f"hydra.sweeper.{name}={value if plain else json.dumps(value)}") if name in OF_HYDRA else ""
    argument = f"{name}={json.dumps(value) if isinstance(value, str | list) else value}"
    if name in OF_SEARCH:
        return argument
    return f"RunOptions({argument})" if caller is Caller.OPTIONS else ""


def or_typed(name: str, value: object = True, then: str = "") -> str:
    """An option as the last of several ways out, with what it does; "" where the call has no such."""
    return f", or {option}{then}" if (option := typed(name, value)) else ""


@contextmanager
def needs(name: str, install: str = '"mpitune[track]"') -> Iterator[None]:
    """Around the import of an optional package. Raises UsageError, which says how to install it, where it is absent."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"{name} is not installed ({error}): pip install {install}") from error


@contextmanager
def keeping(kept: bool) -> Iterator[None]:
    """Whether the study in this context has a results folder, for `how_to_go_on`."""
    global _kept
    before, _kept = _kept, kept
    try:
        yield
    finally:
        _kept = before


def is_kept() -> bool:
    """Whether the study has a results folder."""
    return _kept


def how_to_go_on() -> str:
    """What to do after a study was told to stop."""
    if _kept:
        return "run the same command to continue"
    return f"nothing is kept without a results folder; with {typed('results', 'folder')} the next run could continue"


def printable(text: str) -> str:
    """One line that can be shown on a terminal: what would move its cursor, as a file of a stranger may, is escaped.

    So is half a surrogate pair, such as Python makes of a file's name that is not UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """Text of any lines as `printable`, and no longer than a message of a log may be."""
    return "\n".join(printable(line.expandtabs()) for line in shortened(text, LONGEST_LOGGED).split("\n"))


def utf8(text: str) -> str:
    """A text that can be written as UTF-8: half a surrogate pair is escaped, with a backslash."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def shortened(text: str, most: int = LONGEST_TEXT) -> str:
    """A text of at most so many characters: of a longer one its head and its tail, and between them what was cut."""
    if len(text) <= most:
        return text
    half = (most - 60) // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters were cut ...]\n{text[-half:]}"


def mended(name: object, known: Collection[str]) -> str:
    """What to give in place of a name that is not known: the one that is nearly the same, or all."""
    from difflib import get_close_matches

    close = get_close_matches(str(name), known, 1)
    return f"did you mean {close[0]}?" if close else f"there are {named(known)}"


def named(names: Iterable[object], none: str = "none") -> str:
    """Names for a message: all of them, or the first `MOST_NAMES` and how many others there are."""
    rest = iter(names)
    shown = ", ".join(map(str, islice(rest, MOST_NAMES)))
    others = sum(1 for _ in rest)
    return shown + f" and {others} others" if others else shown or none


def duration(seconds: float) -> str:
    """Seconds in the form people read: 4.2 s, 3 min 20 s, 5 h 07 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} min"


class _InShort(BaseException):
    """IPython shows its text alone, not the calls between the cell and the study."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class UsageError(_InShort, ValueError):
    """Something the user can fix: its text is one line that names the value and the fix.

    Code that handles a ValueError of a library around calls of ours lets this one pass first.
    """

    status = Exit.USAGE  # of a script that it ends

    def __str__(self) -> str:
        return printable(super().__str__().replace("\n", " "))  # a file's name may hold anything


class StudyError(_InShort, RuntimeError):
    """A study could not go on, or all of its trials have failed. The text has the cause of the first failure."""

    status = Exit.ERROR

    def __str__(self) -> str:
        return printable_lines(super().__str__())


class StudyInterrupted(_InShort, KeyboardInterrupt):
    """A study with a results folder was told to stop by SIGINT. The text says how to continue."""

    status = Exit.STOPPED


class StorageError(UsageError):
    """Results cannot be stored while a study runs. Their trials stay open: the same command continues."""

    status = Exit.ERROR


def print_error(prog: str, error: Exception, rank: int = 0) -> Exit:
    """Print an error that the user can fix, in one line on stderr.

    Args:
        prog: the program, as the user calls it.
        error: a UsageError, or another whose text is one line.
        rank: of this process; only rank 0 prints.

    Returns:
        The exit status of this process; the launcher passes on that of rank 0.
    """
    if rank != 0:
        return Exit.DONE
    print(f"{prog}: {error}", file=sys.stderr)
    return error.status if isinstance(error, UsageError) else Exit.ERROR


_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_INSTALLED = tuple({os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")})
_CALL = re.compile(r'^  File "(.*)", line \d+, in .*\n(?:    .*\n)*', re.MULTILINE)


def own_traceback(error: BaseException) -> str:
    """A traceback as text, without the calls of this package that come before the first of others."""
    whole = traceback.TracebackException.from_exception(error)
    others = (n for n, call in enumerate(whole.stack) if not call.filename.startswith(_PACKAGE))
    del whole.stack[: next(others, 0)]
    return "".join(whole.format())


def own_lines(text: str) -> str:
    """Of a traceback the exception and, below it, the user's own calls: not those of libraries, if there are others."""
    _, _, last = text.rpartition("Traceback (most recent call last):\n")
    calls = list(_CALL.finditer(last))
    others = [call for call in calls if not call[1].startswith(_PACKAGE)]
    own = [call for call in others if not call[1].startswith(_INSTALLED)] or others
    error = last[calls[-1].end() :] if calls else last
    return "\n".join([error.strip(), *(call[0].rstrip("\n") for call in own)])
