"""Scripts of users: what ends a search that the script calls is said in plain words, without the calls in between."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from mpitune.errors import Caller, StudyError, StudyInterrupted, UsageError, called_from
from mpitune.processes.output import outliving
from mpitune.ranks.launch import launched

Expected = UsageError | StudyError | StudyInterrupted
EXPECTED = (UsageError, StudyError, StudyInterrupted)


class _OneLine:
    """Stands for `sys.excepthook` from when a search has raised an error until the next one is called.

    That very error is its own words; all others are left to the hook that was there.
    """

    def __init__(self, error: Expected) -> None:
        self.shown: Any = sys.excepthook
        self._error = weakref.ref(error)  # which holds what is on its stack

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, EXPECTED) or error is not self._error():
            self.shown(kind, error, trace)
            return
        if launched().rank == 0:  # the same on all ranks
            with outliving():
                print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
        raise SystemExit(int(error.status))


@contextmanager
def errors_in_one_line(caller: Caller = Caller.OPTIONS) -> Iterator[None]:
    """A UsageError from here that ends the script is one line on stderr, said once by all ranks, and status 2.

    A StudyError is its own lines, and status 1. A StudyInterrupted is one line, and status 75. Advice is for `caller`.

    Where the script catches it, or nothing is raised, `sys.excepthook` stays as it was.
    """
    _let_go()
    try:
        with called_from(caller):
            yield
    except EXPECTED as error:
        _let_go()
        sys.excepthook = _OneLine(error)
        raise
    else:
        _let_go()


def _let_go() -> None:
    if isinstance(sys.excepthook, _OneLine):
        sys.excepthook = sys.excepthook.shown
