"""Results of other tools: `python -m mpitune import TABLE --into RESULTS`, then `search(..., adapt=True)` uses them.

The table is a CSV file with columns param_... and value_..., or scikit-learn's cv_results_ (mean_test_...).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpitune.errors import Exit, UsageError, named, printable
from mpitune.exchange.foreign import known_to, write
from mpitune.settings import program, setting
from mpitune.storage.journal import require_unused


@dataclass(frozen=True)
class ImportOptions:
    """The command line."""

    table: Path = setting(help="CSV file of results")
    into: Path | None = setting(None, "new results folder")


def main(arguments: Sequence[str] | None = None) -> Exit:
    """The command line. Returns the exit status."""
    return program(
        ImportOptions, _import, arguments, prog="python -m mpitune import", description="Results of other tools."
    )


def _import(options: ImportOptions) -> Exit:
    if options.into is None:
        raise UsageError("--into is missing: name the results folder for what is imported")
    require_unused(options.into)
    known = known_to(options.table)
    if not known.trials:
        raise UsageError(f"{options.table} has no trial with a value: nothing was written")
    write(known, options.into)
    values = named(dict.fromkeys(name for _, numbers, _ in known.trials for name in numbers))
    without = f", without {known.n_left_out} that have no value" if known.n_left_out else ""
    use = f"search(..., adapt=True) with this folder uses their {values}"
    print(printable(f"{options.into}: {len(known.trials)} trials{without}; {use}"))
    return Exit.DONE
