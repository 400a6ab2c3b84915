"""Exit statuses, and the error that becomes one line on stderr."""

from enum import IntEnum


class Exit(IntEnum):
    DONE = 0
    ERROR = 1
    USAGE = 2
    FAILED_TRIALS = 3
    STOPPED = 75  # EX_TEMPFAIL: run the same command to continue


def printable(text: str) -> str:
    """One line that can be shown on a terminal: what would move its cursor, as a file of a stranger may, is "?"."""
    return "".join(c if c.isprintable() else "?" for c in text)


class UsageError(Exception):
    """Something the user can mend: its text is one line that names the value and the fix."""

    def __str__(self) -> str:
        return printable(super().__str__().replace("\n", " "))  # a file's name may hold anything


class StorageError(UsageError):
    """Results cannot be stored while a study runs. What was not stored is not done: the same command continues."""
