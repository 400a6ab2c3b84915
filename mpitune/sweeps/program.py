"""The program of a sweep file as an objective. It is started as W&B's agent starts it, and its metric is read."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpitune.errors import named
from mpitune.optimize.commands import OUTPUT, Command
from mpitune.optimize.objectives import ObjectiveTrial
from mpitune.optimize.spaces import Space
from mpitune.optimize.spaces.parameters import shown
from mpitune.optimize.values import NoValue, no_fault_of_the_trial
from mpitune.storage.files import written_whole
from mpitune.sweeps.metrics import MetricValues, link_open_run, metric_in
from mpitune.sweeps.stopping import band_behind
from mpitune.trial import PRUNED, Ending, Evaluation

if TYPE_CHECKING:
    from mpitune.sweeps.reading import Sweep

MACRO = re.compile(r"\$\{([^}]*)\}")
VARIABLE = re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")
NO_METRIC = "exit_status"  # the value of runs whose sweep file has no metric: always 0, as the others have failed
PARAMS, ARGS = "sweep-params.yaml", "sweep-args.json"  # in the trial's folder
SHORTEST = 4  # characters of a variable's value that is not shown wherever it stands
MOST_STEPS = 1000  # of a trial that are kept
ARGUMENTS = re.compile(r"unrecognized arguments|arguments are required|[Nn]o such option")  # a script that reads others


def with_variables(word: str) -> str:
    """A word with the values of environment variables; as W&B's agent, with the name of one that is not there."""
    return VARIABLE.sub(lambda match: os.environ.get(match[1], match[1]), word)


class Runs:
    """What trials of a sweep are, whatever runs them: runs of W&B in its offline mode, whose metric is read.

    Args:
        sweep: The file.
        paths: Where each parameter is in the configuration: `("optimizer", "lr")` is nested.
        sweep_id: Begins the id of each run.
    """

    def __init__(self, sweep: Sweep, paths: Mapping[str, tuple[str, ...]], sweep_id: str):
        self.sweep, self.paths, self.sweep_id = sweep, paths, sweep_id

    def new_run(self, trial: ObjectiveTrial) -> str:
        """W&B's id of this attempt alone, as its run may be anywhere, beside those of others."""
        return f"{self.sweep_id}-t{trial._trial.segment.number:06}-{os.urandom(4).hex()}"

    @property
    def sign(self) -> int:
        """What makes a loss of the metric."""
        return -1 if self.sweep.metric.goal == "maximize" else 1

    def look(self, trial: ObjectiveTrial, folder: Path, run: str, ended: bool) -> tuple[MetricValues, int | None]:
        """The metric of a run by now, and the band at which it is stopped."""
        name = self.sweep.metric.name
        if name == NO_METRIC:
            return MetricValues(name, False, iter([(name, 0.0, None)])), None
        metric = metric_in(folder, self.sweep.mpitune.read, name, self.sign < 0, run, ended)
        return metric, band_behind([self.sign * value for _, value in sorted(metric.steps.items())], trial.limits)

    def answer(self, trial: ObjectiveTrial, metric: MetricValues, band: int | None, failed: str = "") -> Evaluation:
        """Of a run that has ended. Raises NoValue, RuntimeError."""
        name, early = self.sweep.metric.name, self.sweep.early_terminate
        if band is None and (failed or metric.end is None):
            raise self.error(failed, metric)
        steps = sorted(metric.steps.items())[:band]
        end = metric.end if band is None else steps[-1][1]
        assert end is not None
        every = -(-len(steps) // MOST_STEPS)
        few = {n: {name: value} for place, (n, value) in enumerate(steps) if (len(steps) - place) % every == 0}
        kept = early and early.of([self.sign * value for _, value in steps])
        ending = Ending("" if band is None else PRUNED, steps=few, for_door=kept)
        return Evaluation(trial._trial.key, {name: end}, read=("folder",), ending=ending)

    def error(self, failed: str, metric: MetricValues | None = None) -> Exception:
        """What is wrong with a run without a value."""
        if ARGUMENTS.search(failed):
            return NoValue(f"{failed}: give parameters the names that it reads, or change command in the sweep file")
        if "No API key configured" in failed:
            fix = "leave mode='online', wandb.sweep and wandb.agent out of what a run calls, or set WANDB_API_KEY"
            return NoValue(f"{failed}: {fix}")
        if failed:
            return RuntimeError(failed)
        name, there = self.sweep.metric.name, sorted(metric.others) if metric else ()
        if metric is not None and metric.no_number is not None:
            return NoValue(f"it has logged {name} = {shown(metric.no_number)}: log a number")
        if not there:
            more = ", or print it as a line of JSON" if isinstance(self, Command) else ", not in mode disabled"
            return NoValue(f"it has logged nothing: log {name} by wandb.log{more}")
        return NoValue(f"it has logged no {name}, but {named(there)}: name one of these in metric, or log {name}")

    def config(self, trial: ObjectiveTrial) -> dict[str, Any]:
        """Its parameters, as nested as in the file."""
        config: dict[str, Any] = {}
        for name, value in trial.params.items():
            inside = config
            for group in self.paths[name][:-1]:
                inside = inside.setdefault(group, {})
            inside[self.paths[name][-1]] = value
        return config

    def write_config(self, trial: ObjectiveTrial, path: Path) -> None:
        """The file that W&B reads them from."""
        import yaml

        params = {"wandb_version": 1, **{name: {"value": value} for name, value in self.config(trial).items()}}
        with no_fault_of_the_trial(path), written_whole(path, "w", durable=False) as file:
            file.write(yaml.safe_dump(params, sort_keys=False))

    def variables(self, run: str, params: Path) -> dict[str, str]:
        """What tells W&B which run it is."""
        own = {"SWEEP_ID": self.sweep_id, "RUN_ID": run, "SWEEP_PARAM_PATH": str(params)}
        own |= {"NAME": run.rpartition("-")[0]}
        usual = {"WANDB_MODE": "offline", "WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL": "1"}
        usual |= {"WANDB_PROJECT": self.sweep.project} if self.sweep.project else {}
        usual |= {"WANDB_ENTITY": self.sweep.entity} if self.sweep.entity else {}
        defaults = {name: value for name, value in usual.items() if name not in os.environ}
        return {**defaults, **{f"WANDB_{name}": value for name, value in own.items()}}


class Program(Runs, Command):
    """Runs the program of a sweep file for each trial."""

    anew: tuple[str, ...] = (OUTPUT, PARAMS, ARGS, "wandb", "events.out.tfevents.*")

    def __init__(self, sweep: Sweep, paths: Mapping[str, tuple[str, ...]], sweep_id: str):
        Runs.__init__(self, sweep, paths, sweep_id)
        Command.__init__(self, [sweep.program if word == "${program}" else str(word) for word in sweep.command])

    def check(self, space: Space) -> None:
        """Nothing: its macros were looked at when its file was read."""

    def _names(self) -> set[str]:
        return set()

    def __call__(self, trial: ObjectiveTrial) -> Evaluation:
        folder, run = trial.folder, self.new_run(trial)

        def enough() -> bool:
            link_open_run(folder, run)
            return bool(trial.limits) and self.look(trial, folder, run, False)[1] is not None

        self.write_config(trial, folder / PARAMS)
        with no_fault_of_the_trial(folder / ARGS), written_whole(folder / ARGS, "w", durable=False) as file:
            file.write(json.dumps(self.config(trial)))
        words, words_shown = self._words(trial, folder), self._words(trial, folder, str)
        # W&B then says where the run is.
        around = {"WANDB_DIR": str(folder), "WANDB_SILENT": "false", "WANDB_QUIET": "false"}
        try:
            around |= self.variables(run, folder / PARAMS)
            failed = self._named(self.run(trial, words, around, enough, words_shown))
            metric, band = self.look(trial, folder, run, True)
        except OSError as error:  # there is no such program, for instance
            raise RuntimeError(self._named(str(error))) from None
        return self.answer(trial, metric, band, failed)

    def _named(self, text: str) -> str:
        """A text with the names of the command's environment variables where it has their values."""
        for name in {name for word in self.words for name in VARIABLE.findall(word)}:
            if len(value := os.environ.get(name, "")) >= SHORTEST:
                text = text.replace(value, f"${{envvar:{name}}}")
        return text

    def _words(self, trial: ObjectiveTrial, folder: Path, filled: Callable[[str], str] = with_variables) -> list[str]:
        """The command of a trial. filled: what makes a word of one that is no macro."""
        macros = {
            "env": ["/usr/bin/env"], "interpreter": [sys.executable], "folder": [str(folder)],
            "args_json_file": [str(folder / ARGS)], **arguments(self.config(trial)),
        }  # fmt: skip
        words = [word.format(hosts=",".join(trial.hosts), nodes=len(trial.hosts)) for word in self.launcher or ()]
        for word in self.words:
            macro = MACRO.fullmatch(word)
            words += macros.get(macro[1] if macro else "", [filled(word)])
        return words


def arguments(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """What W&B's macros stand for, see `create_sweep_command_args` there."""
    plain = [f"{name}={value}" for name, value in config.items()]
    flags = [f"--{n}" if value is True else f"--{n}={value}" for n, value in config.items() if value is not False]
    return {
        "args": [f"--{text}" for text in plain],
        "args_no_equals": [word for name, value in config.items() for word in (f"--{name}", str(value))],
        "args_no_hyphens": plain,
        "args_no_boolean_flags": flags,
        "args_json": [json.dumps(config)],
        "args_append_hydra": [f"+{text}" for text in plain],
        "args_override_hydra": [f"++{text}" for text in plain],
    }


MACROS = ("env", "interpreter", "program", "folder", "args_json_file", *arguments({}))
