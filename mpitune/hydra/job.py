"""A job of Hydra as an objective of Optuna."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import optuna
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobStatus, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from mpitune.errors import UsageError
from mpitune.optimize.attempts import AttemptFolder
from mpitune.optimize.objectives import ObjectiveTrial, as_current
from mpitune.optimize.strategies.base import trial_of

MOST_TRIED = 50  # values of a choice that are composed before any job begins
RETURNED_NOTHING = "returned nothing"  # the user attribute of a job that did


@dataclass
class HydraJob:
    """The objective: Hydra's job, with its own configuration, folder and log."""

    context: HydraContext
    task: TaskFunction
    config: DictConfig
    space: dict[str, Any]  # what each parameter that is swept is to Optuna
    line: dict[str, str | None]  # the command line in its order, None where a parameter is swept
    may_be_silent: bool  # return nothing, as it is started for what it writes
    singletons: Any
    joined: str  # digits of this job where others have joined, see `AttemptFolder`

    def __post_init__(self) -> None:
        self.__wrapped__ = self.task  # whose changes are told

    def check(self) -> str:
        """A digest of what is composed. Raises UsageError where Hydra cannot compose it, before any job begins."""
        digest = sha256(_own(self.config))
        ends = {n: getattr(part, "choices", ()) or (part.low, part.high) for n, part in self.space.items()}
        for n in range(min(MOST_TRIED, max(map(len, ends.values()), default=1))):
            point = {name: values[n % len(values)] for name, values in ends.items()}
            try:
                digest.update(_own(self._composed(point)))  # as files of groups may change
            except Exception as error:
                words = " ".join(f"{name}={value}" for name, value in point.items())
                raise UsageError(f"the job {words} cannot be configured: {str(error).strip()}") from error
        return digest.hexdigest()[:8]

    def _composed(self, params: Mapping[str, Any]) -> DictConfig:
        words = [f"{name}={params[name]}" if text is None else text for name, text in self.line.items()]
        return self.context.config_loader.load_sweep_config(self.config, words)

    def __call__(self, trial: optuna.Trial) -> Any:
        for name, part in self.space.items():
            trial._suggest(name, part)
        Singleton.set_state(self.singletons)
        setup_globals()
        config = self._composed(trial.params)
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = trial.number  # as with Hydra's own sweeper
        HydraConfig.instance().set_config(config)
        device = "cuda" if os.environ.get("CUDA_VISIBLE_DEVICES") else "cpu"  # as a worker has set it
        this, pruning = trial_of(trial.number, {}), _Pruning(trial)
        own = AttemptFolder(this, Path(config.hydra.sweep.dir, config.hydra.sweep.subdir).absolute(), self.joined)
        own_trial = ObjectiveTrial(dict(trial.params), device, 0, 0, this, 0, own, _begin=lambda _: pruning)
        with as_current(own_trial):
            ended = run_job(self.task, config, "hydra.sweep.dir", "hydra.sweep.subdir", self.context)
        for name, value in own_trial.user_attrs.items():
            trial.set_user_attr(name, value)
        if ended.status != JobStatus.COMPLETED:
            raise ended._return_value
        own.finish()
        if ended.return_value is None and self.may_be_silent:
            trial.set_user_attr(RETURNED_NOTHING, True)
            return 0.0
        return ended.return_value


def _own(config: DictConfig) -> bytes:
    """The app's own part of it."""
    return OmegaConf.to_yaml(OmegaConf.masked_copy(config, [str(name) for name in config if name != "hydra"])).encode()


class _Pruning:
    """Takes in the reports of a job, by name or one number: Optuna's pruner decides by them."""

    is_over = False

    def __init__(self, trial: optuna.Trial):
        self._trial, self._last = trial, 0

    def add(self, values: Any, step: int | None) -> None:
        if len(self._trial.study.directions) > 1:
            return  # Optuna prunes by one value
        self._last = self._last + 1 if step is None else step
        self._trial.report(float(next(iter(values.values())) if isinstance(values, Mapping) else values), self._last)
        if self._trial.should_prune():
            raise optuna.TrialPruned
