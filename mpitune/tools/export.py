"""A study for other tools: `python -m mpitune export RESULTS --to csv`. It reads the journal alone, of any study.

    csv, json             a table or an object of all trials
    optuna                a journal file of Optuna's storage: optuna-dashboard FILE
    mlflow                a database: mlflow ui --backend-store-uri sqlite:///FILE
    tensorboard           event files for HParams: tensorboard --logdir FOLDER
    wandb-offline         offline runs: wandb sync FOLDER/wandb/offline-run-*

What csv and json do not need is in the extra: pip install "mpitune[export]".
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mpitune.errors import Exit, UsageError, named, printable
from mpitune.exchange.formats import FORMATS
from mpitune.exchange.trials import ExportedStudy, read
from mpitune.report.candidates import Goal
from mpitune.settings import program, setting


@dataclass(frozen=True)
class ExportOptions:
    """The command line."""

    folder: Path = setting(help="results folder of the study")
    to: str = setting("csv", "format: " + ", ".join(FORMATS), choices=tuple(FORMATS))
    into: Path | None = setting(None, "file or folder to write, which must not exist (default: one in RESULTS)")
    goal: str | None = setting(
        None, "for optuna: the goal, such as 'minimize loss', if the journal does not have it", metavar="GOAL"
    )

    def __post_init__(self) -> None:
        if self.goal is not None:
            Goal.of(self.goal)


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
    try:
        if options.to == "optuna":
            study = replace(study, objectives=_objectives(study, options.goal))
        write(study, into)
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


def _objectives(study: ExportedStudy, goal: str | None) -> Mapping[str, bool]:
    if goal is None:
        if not study.objectives:
            raise UsageError("the journal does not say what is searched for: give --goal, such as 'minimize loss'")
        return study.objectives
    asked, there = Goal.of(goal), dict.fromkeys(name for trial in study.trials for name in trial.values)
    if asked.name not in there:
        raise UsageError(f"no trial has a value called {asked.name}: they have {named(there)}")
    return {asked.name: asked.maximize}
