"""A study for other tools: `python -m mpitune export RESULTS --to csv`. It reads the journal alone, of any study.

    csv, parquet, json    a table or an object of all trials
    optuna                a journal file of Optuna's storage: optuna-dashboard FILE
    mlflow                a database: mlflow ui --backend-store-uri sqlite:///FILE
    tensorboard           event files for HParams: tensorboard --logdir FOLDER
    wandb-offline         offline runs: wandb sync FOLDER/wandb/offline-run-*

What csv and json do not need is in the extra: pip install "mpitune[export]".
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpitune.errors import Exit, UsageError, named, printable
from mpitune.export.trials import ExportedStudy, read
from mpitune.optimize.search_study import COMPLETE
from mpitune.settings import program, setting

# The name in the results folder that an export gets if no other is given.
NAMES = {
    "csv": "export.csv",
    "parquet": "export.parquet",
    "json": "export.json",
    "optuna": "optuna.log",
    "mlflow": "mlflow.db",
    "tensorboard": "tensorboard",
    "wandb-offline": "wandb-offline",
}


@dataclass(frozen=True)
class ExportOptions:
    """The command line."""

    folder: Path = setting(help="results folder of the study")
    to: str = setting("csv", "format: " + ", ".join(NAMES), choices=tuple(NAMES))
    into: Path | None = setting(None, "file or folder to write, which must not exist (default: one in RESULTS)")
    minimize: tuple[str, ...] = setting(
        (), "values to minimize, for optuna (default: those of the search)", metavar="NAME"
    )
    maximize: tuple[str, ...] = setting((), "values to maximize, for optuna", metavar="NAME")


def main(arguments: Sequence[str] | None = None) -> Exit:
    """The command line. Returns the exit status."""
    return program(
        ExportOptions, _export, arguments, prog="python -m mpitune export", description="A study for other tools."
    )


def _export(options: ExportOptions) -> Exit:
    study = read(options.folder)
    into = options.into or options.folder / NAMES[options.to]
    if os.path.lexists(into):
        raise UsageError(f"{into} exists: remove it, or give another name with --into")
    try:
        _write(study, options, into)
    except OSError as error:
        raise UsageError(
            f"{into} cannot be written ({error.strerror or error}): give another name with --into"
        ) from error
    except UsageError:
        raise
    except Exception as error:  # of another tool, which takes less than a journal holds
        said = f"{type(error).__name__}: {error}"
        raise UsageError(f"{options.to} cannot hold this study ({said}): give another format with --to") from error
    print(printable(f"{into}: {len(study.trials)} trials"))
    return Exit.DONE


def _write(study: ExportedStudy, options: ExportOptions, into: Path) -> None:
    match options.to:
        case "csv":
            from mpitune.export.files import to_csv

            to_csv(study, into)
        case "parquet":
            from mpitune.export.files import to_parquet

            to_parquet(study, into)
        case "json":
            from mpitune.export.files import to_json

            to_json(study, into)
        case "optuna":
            from mpitune.export.optuna import to_optuna

            to_optuna(study, into, _objectives(study, options))
        case "mlflow":
            from mpitune.export.mlflow import to_mlflow

            to_mlflow(study, into)
        case "tensorboard":
            from mpitune.export.tensorboard import to_tensorboard

            to_tensorboard(study, into)
        case _:
            from mpitune.export.wandb import to_wandb

            to_wandb(study, into)


def _objectives(study: ExportedStudy, options: ExportOptions) -> dict[str, bool]:
    """Those asked for, or those of the search, or the first value there is, which is then minimized."""
    asked = {name: up for names, up in ((options.minimize, False), (options.maximize, True)) for name in names}
    there = list(dict.fromkeys(name for trial in study.trials for name in trial.values))
    if missing := [name for name in asked if name not in there]:
        raise UsageError(f"no trial has a value called {missing[0]}: they have {named(there)}")
    if found := asked or dict(study.objectives):
        return found
    first = next((trial for trial in study.trials if trial.state == COMPLETE and trial.values), None)
    if first is None:
        raise UsageError("no trial has a value: name what counts with --minimize or --maximize")
    name = next(iter(first.values))
    print(printable(f"{name} is minimized: name another value with --minimize or --maximize"))
    return {name: False}
