"""Results of other tools: `python -m mpitune import SOURCE --into RESULTS`, then `search(..., adapt=True)` uses them.

sqlite:///FILE, FILE   a study of Optuna in a SQLite database or a journal file; --study says which of several
FILE.csv               a table with columns param_... and value_..., or scikit-learn's cv_results_ (mean_test_...)
FILE.json              the same by columns or by rows, as pandas and scikit-learn's users write it
RESULTS                folders of studies of the same settings, which are joined
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpitune.errors import Exit, UsageError, named, printable
from mpitune.exchange.foreign import known_to, merge, write
from mpitune.settings import program, setting
from mpitune.storage.journal import require_unused


@dataclass(frozen=True)
class ImportOptions:
    """The command line."""

    sources: tuple[str, ...] = setting(help="file, sqlite:/// address, or results folders", metavar="source")
    into: Path | None = setting(None, "new results folder; one of the same settings, if folders are joined")
    study: str | None = setting(None, "name of the study of Optuna, if there are several", metavar="NAME")
    names: tuple[str, ...] = setting(
        (), "names of the values of a study of Optuna that has none, in their order", metavar="NAME"
    )


def main(arguments: Sequence[str] | None = None) -> Exit:
    """The command line. Returns the exit status."""
    return program(
        ImportOptions, _import, arguments, prog="python -m mpitune import", description="Results of other tools."
    )


def _import(options: ImportOptions) -> Exit:
    if options.into is None:
        raise UsageError("--into is missing: name the results folder for what is imported")
    require_unused(options.into)
    folders = [Path(source) for source in options.sources if os.path.isdir(source)]
    if folders and len(folders) == len(options.sources):
        n, left_out, use = merge(folders, options.into), 0, "the same search goes on there"
    elif folders or len(options.sources) > 1:
        raise UsageError("several sources are joined only if all are results folders: import one file at a time")
    else:
        known = known_to(options.sources[0], options.study, options.names)
        n, left_out = len(known.trials), known.n_left_out
        if not n:
            raise UsageError(f"{options.sources[0]} has no trial with a value: nothing was written")
        write(known, options.into)
        values = named(dict.fromkeys(name for _, numbers, *_ in known.trials for name in numbers))
        use = f"search(..., adapt=True) with this folder uses their {values}"
    without = f", without {left_out} that have no value" if left_out else ""
    print(printable(f"{options.into}: {n} trials{without}; {use}"))
    return Exit.DONE
