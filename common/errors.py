"""Exit statuses, and the error that becomes one line on stderr."""

import sys
from enum import IntEnum


class Exit(IntEnum):
    """Exit statuses of all programs."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    FAILED_TRIALS = 3
    STOPPED = 75  # EX_TEMPFAIL: run the same command to continue


def printable(text: str) -> str:
    """One line that can be shown on a terminal: what would move its cursor, as a file of a stranger may, is "?"."""
    return "".join(c if c.isprintable() else "?" for c in text)


class UsageError(Exception):
    """Something the user can fix: its text is one line that names the value and the fix."""

    def __str__(self) -> str:
        return printable(super().__str__().replace("\n", " "))  # a file's name may hold anything


class StorageError(UsageError):
    """Results cannot be stored while a study runs. Their trials stay open: the same command continues."""


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
    return Exit.USAGE if isinstance(error, UsageError) and not isinstance(error, StorageError) else Exit.ERROR
