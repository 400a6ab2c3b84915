"""A study for other tools: `python -m mpitune export RESULTS --to csv`. It reads the journal alone, of any study.

    csv, json             a table or an object of all trials
    optuna                a journal file of Optuna's storage: optuna-dashboard FILE

The last needs Optuna: pip install "mpitune[export]". Other tools follow a study that runs: --track.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpitune.errors import Exit, UsageError, printable
from mpitune.exchange.formats import FORMATS
from mpitune.settings import program, setting
from mpitune.storage.trials import read


@dataclass(frozen=True)
class ExportOptions:
    """The command line."""

    folder: Path = setting(help="results folder of the study")
    to: str = setting("csv", "format: " + ", ".join(FORMATS), choices=tuple(FORMATS))
    into: Path | None = setting(None, "file to write, which must not exist (default: one in RESULTS)")


def main(arguments: Sequence[str] | None = None) -> Exit:
    """The command line. Returns the exit status."""
    return program(
        ExportOptions, _export, arguments, prog="python -m mpitune export", description="A study for other tools."
    )


def _export(options: ExportOptions) -> Exit:
    study = read(options.folder)
    write, name = FORMATS[options.to]
    into = options.into or options.folder / name
    if os.path.lexists(into):
        raise UsageError(f"{into} exists: give another name with --into")
    if options.to == "optuna" and not study.objectives:
        raise UsageError("the journal does not say what is searched for, so Optuna cannot hold it: give another --to")
    try:
        write(study, into)
    except OSError as error:
        raise UsageError(
            f"{into} cannot be written ({error.strerror or error}): give another name with --into"
        ) from error
    except UsageError:
        raise
    except Exception as error:  # of another tool, which takes less than a journal holds
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"{options.to} cannot hold this study ({reason}): give another format with --to") from error
    print(printable(f"{into}: {len(study.trials)} trials"))
    return Exit.DONE
