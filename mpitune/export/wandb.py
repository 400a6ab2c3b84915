"""A study for Weights & Biases: offline runs, one for each trial, which `wandb sync` sends when you want it to."""

from __future__ import annotations

import os
from pathlib import Path

from mpitune.export.extras import needs
from mpitune.export.trials import ExportedStudy
from mpitune.optimize.search_study import FAILED


def to_wandb(study: ExportedStudy, into: Path) -> None:
    """Write the folder `into`, which must not exist: `wandb sync FOLDER/wandb/offline-run-*`. Nothing is sent here."""
    os.environ.setdefault("WANDB_SILENT", "true")
    with needs("wandb"):
        import wandb
    into.mkdir(parents=True)
    for trial in study.trials:
        run = wandb.init(
            mode="offline", dir=into, project=str(study.header["settings"]["experiment"]), group=study.name,
            name=trial.key, config=dict(trial.params), tags=[trial.state], reinit="finish_previous",
            settings=wandb.Settings(console="off", disable_git=True, save_code=False, x_disable_stats=True),
        )  # fmt: skip
        for step, values in sorted(trial.steps.items()):
            run.log(dict(values), step=step)
        place = str(trial.last.place)
        run.summary.update(
            {**trial.values, **trial.used, "seconds": trial.seconds, "place": place, "error": trial.error}
        )
        run.finish(exit_code=1 if trial.state == FAILED else 0)
    wandb.teardown()  # its service writes the last records, and may do so after `finish`
