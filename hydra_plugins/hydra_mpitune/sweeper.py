"""A sweeper of Hydra: the jobs of --multirun on all devices of all nodes, without batches, as one study of Optuna.

    python train.py --multirun hydra/sweeper=mpitune 'lr=tag(log, interval(1e-5, 1e-1))' hydra.sweeper.n_trials=60

Its configuration is that of hydra-optuna-sweeper, with ours besides. Hydra imports this file whenever it starts, so
Optuna and all of mpitune are imported when a sweep begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.experimental.callback import Callback
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, flag_override

# A command line may set any argument that Optuna's class has.
PARTS: dict[str, dict[str, str]] = {
    "sampler": {
        "tpe": "TPESampler", "random": "RandomSampler", "cmaes": "CmaEsSampler", "nsgaii": "NSGAIISampler",
        "gp": "GPSampler", "qmc": "QMCSampler",
    },
    "pruner": {
        "median": "MedianPruner", "hyperband": "HyperbandPruner", "asha": "SuccessiveHalvingPruner",
        "none": "NopPruner",
    },
}  # fmt: skip

# The keys below `hydra.sweeper`; docs/hydra.md says what each is. None is for "not given".
HERE = "hydra_plugins.hydra_mpitune.sweeper"
KEYS: dict[str, Any] = {
    "_target_": f"{HERE}.MpituneSweeper",
    "_recursive_": False,
    "defaults": [{"sampler": "tpe"}, {"pruner": "median"}, {"/hydra/mpitune@_global_.hydra.callbacks": "chosen"}],
    "direction": "minimize",
    "max_failure_rate": 0.0,
    "join": False,
    "retry_failed": False,
    **dict.fromkeys((
        "storage", "study_name", "n_trials", "n_jobs", "params", "seed", "results", "timeout", "trial_timeout",
        "workers", "gpu", "track",
    )),
}  # fmt: skip

store = ConfigStore.instance().store
store(group="hydra/sweeper", name="mpitune", node=KEYS, provider="mpitune")
store(group="hydra/mpitune", name="chosen", node={"mpitune": {"_target_": f"{HERE}.Chosen"}}, provider="mpitune")
for kind, known in PARTS.items():
    for name, target in known.items():
        seed = {"seed": "${hydra.sweeper.seed}"} if kind == "sampler" else {}
        node = OmegaConf.create({"_target_": f"optuna.{kind}s.{target}", **seed}, flags={"struct": False})
        store(group=f"hydra/sweeper/{kind}", name=name, node=node, provider="mpitune")


class Chosen(Callback):
    """Takes this sweeper where it is asked for, though the app's own file names the class of another below its keys."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        with flag_override(config, ["readonly", "struct"], [False, False]):
            config.hydra.sweeper._target_ = KEYS["_target_"]


class MpituneSweeper(Sweeper):
    """What Hydra calls; `mpitune.hydra` does the work."""

    def __init__(self, **keys: Any) -> None:
        self.keys: Mapping[str, Any] = keys

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config, self.task = hydra_context, config, task_function

    def sweep(self, arguments: list[str]) -> None:
        """Run the jobs that the overrides of the command line ask for."""
        from mpitune.hydra.sweeper import sweep

        sweep(self, [*KEYS, *PARTS], arguments)
