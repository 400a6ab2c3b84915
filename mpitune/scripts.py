"""Scripts of users: an error that its user can fix is one line, wherever the script raises it."""

from __future__ import annotations

import os
import sys
from functools import cache
from types import TracebackType

from mpitune.errors import Exit, StorageError, UsageError
from mpitune.output import outliving
from mpitune.ranks.launch import launched


@cache
def say_errors_in_one_line() -> None:
    """From now on a UsageError that ends this script is one line on stderr, said once by all ranks, and status 2."""
    shown = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, UsageError):
            shown(kind, error, trace)
        else:
            if launched().rank == 0:  # the same on all ranks
                with outliving():
                    print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
            raise SystemExit(int(Exit.ERROR if isinstance(error, StorageError) else Exit.USAGE))

    sys.excepthook = excepthook
