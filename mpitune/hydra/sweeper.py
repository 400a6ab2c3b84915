"""A sweep of Hydra as a study of Optuna.

Hydra's sweep grammar says what is searched. Without `n_trials`, and with choices and ranges alone, each combination is
a job, in the order of Hydra's own sweeper; else Optuna's sampler proposes. There are no batches: trial n needs the
results of trials up to n - window.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.singleton import Singleton
from hydra.errors import HydraException
from hydra.types import HydraContext, TaskFunction
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from mpitune.errors import Caller, StudyError, UsageError, called_from, mended
from mpitune.hydra.job import RETURNED_NOTHING, Job
from mpitune.hydra.space import Swept, swept
from mpitune.optimize.tuning import require_whole
from mpitune.options import RunOptions
from mpitune.optuna.optimizing import optimize
from mpitune.ranks import launch
from mpitune.settings import require_seconds
from mpitune.storage.files import written_whole
from mpitune.studies import join, led

Keys = Mapping[str, Any]  # what `hydra.sweeper` has
BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


def sweep(
    keys: Keys,
    known: Sequence[str],
    context: HydraContext,
    task: TaskFunction,
    config: DictConfig,
    arguments: Sequence[str],
) -> None:
    """Run all jobs that the overrides `arguments` ask for, with what `hydra.sweeper` has, and may have (`known`).

    Under mpirun or srun rank 0 does, and the others make them.
    """
    try:
        with called_from(Caller.HYDRA), led(join(RunOptions(heartbeat_timeout=0.0))) as leads:
            if leads:
                for key in keys.keys() - set(known):
                    raise UsageError(f"hydra.sweeper has {key!r}: {mended(key, known)}")
                _sweep(keys, context, task, config, arguments)
    except (StudyError, UsageError) as error:
        if not launch.launched().rank:  # the same on all ranks
            print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(int(error.status))


def _sweep(keys: Keys, context: HydraContext, task: TaskFunction, config: DictConfig, arguments: Sequence[str]) -> None:
    _require_possible(keys, config)
    overrides = _overrides(keys, context, arguments)
    is_whole = keys["n_trials"] is None  # each combination is a job, which nothing is learned for
    last = {override.get_key_element(): override for override in overrides}  # the last word counts
    before = random.getstate()
    random.seed(keys["seed"] or 0)  # shuffle(...) has the same order when the command is repeated
    space = {n: swept(override, is_whole) for n, override in last.items() if override.is_sweep_override()}
    random.setstate(before)
    line = {n: None if n in space else f"{n}={each.get_value_element_as_str()}" for n, each in last.items()}
    study = _study(keys)
    job = Job(
        context, task, config, space, line, len(study.directions) == 1 and is_whole, Singleton.get_state(),
        os.urandom(4).hex() if keys["join"] else "",
    )  # fmt: skip
    n_trials = _begun(study, space, keys)
    folder = Path(str(config.hydra.sweep.dir))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _save(config, folder / "multirun.yaml")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror}): give another hydra.sweep.dir") from error
    job.check()
    options = RunOptions(
        results=None if keys["results"] is None else Path(keys["results"]), join=bool(keys["join"]),
        workers=keys["workers"], gpu=None if keys["gpu"] is None else str(keys["gpu"]),
        trial_timeout=keys["trial_timeout"], track=keys["track"] or (),
    )  # fmt: skip
    rate = keys["max_failure_rate"]
    optimize(
        study, job, n_trials, keys["timeout"], catch=Exception if rate else (), callbacks=() if rate else [_end_failed],
        space=" ".join([*(str(override.input_line) for override in overrides), _digest(config)]),
        window=keys["n_jobs"] if keys["window"] is None else keys["window"], options=options,
    )  # fmt: skip
    _conclude(study, float(rate), folder)


def _require_possible(keys: Keys, config: DictConfig) -> None:
    """Raise UsageError for keys that cannot be."""
    if keys["join"] and keys["results"] is None:
        raise UsageError("hydra.sweeper.join=true needs results that all jobs see: give hydra.sweeper.results")
    if not 0 <= (rate := float(keys["max_failure_rate"])) <= 1:
        raise UsageError(f"hydra.sweeper.max_failure_rate={rate:g}: give a part of all jobs, 0 to 1")
    require_seconds("hydra.sweeper.timeout", keys["timeout"])
    require_whole("hydra.sweeper.n_trials", keys["n_trials"], 1)
    if (launcher := config.hydra.launcher.get("_target_", BASIC)) != BASIC:
        raise UsageError(f"hydra/launcher={launcher}: mpitune starts the jobs itself, so leave hydra/launcher out")


def _overrides(keys: Keys, context: HydraContext, arguments: Sequence[str]) -> list[Override]:
    """Those of `params`, and of the command line."""
    words = [f"{name}={value}" for name, value in (keys["params"] or {}).items()]
    try:
        return OverridesParser.create(config_loader=context.config_loader).parse_overrides([*words, *arguments])
    except HydraException as error:  # of params, as Hydra has read the command line before
        why = str(error).splitlines()[0]
        raise UsageError(f"hydra.sweeper.params: {why}: give sweeps of Hydra, such as lr: interval(0.1, 1)") from error


def _conclude(study: Study, rate: float, folder: Path) -> None:
    """Write down what was found. Raises StudyError where too many jobs have failed."""
    complete = study.get_trials(states=[TrialState.COMPLETE])
    silent = [trial.number for trial in complete if RETURNED_NOTHING in trial.user_attrs]
    if 0 < len(silent) < len(complete):
        raise StudyError(f"job {silent[0]} returned nothing, and others a number: return a number in each")
    failed = [trial.number for trial in study.trials if trial.state == TrialState.FAIL]
    if len(failed) > rate * len(study.trials):
        raise StudyError(
            f"{len(failed)} of {len(study.trials)} jobs have failed (the first is job {failed[0]}), more than "
            f"hydra.sweeper.max_failure_rate={rate:g}"
        )
    if silent or not complete:
        return
    summary: dict[str, Any] = {"name": "mpitune"}  # as hydra-optuna-sweeper writes it
    if len(study.directions) == 1:
        summary |= {"best_params": study.best_params, "best_value": study.best_value}
    else:
        summary["solutions"] = [{"params": trial.params, "values": trial.values} for trial in study.best_trials]
    _save(OmegaConf.create(summary), folder / "optimization_results.yaml")


def _end_failed(study: Study, trial: FrozenTrial) -> None:
    """A callback: the first failure ends the sweep, also one that raises nothing."""
    if trial.state == TrialState.FAIL:
        study.stop()


def _digest(config: DictConfig) -> str:
    """Of the application's own configuration."""
    own = OmegaConf.masked_copy(config, [str(name) for name in config if name != "hydra"])
    return f"(configuration {hashlib.sha256(OmegaConf.to_yaml(own).encode()).hexdigest()[:8]})"


def _study(keys: Keys) -> Study:
    directions = keys["direction"] if OmegaConf.is_list(keys["direction"]) else [keys["direction"]]
    names = [str(getattr(direction, "name", direction)) for direction in directions]
    if wrong := [name for name in names if name not in ("minimize", "maximize")]:
        raise UsageError(f"hydra.sweeper.direction={wrong[0]}: give minimize or maximize")
    return optuna.create_study(
        study_name=keys["study_name"], storage=keys["storage"], directions=names, load_if_exists=True,
        sampler=_part("sampler", keys["sampler"], keys["seed"]), pruner=_part("pruner", keys["pruner"], None),
    )  # fmt: skip


def _part(kind: str, part: Any, seed: int | None) -> Any:
    """A sampler or pruner of Optuna from its configuration. Raises UsageError."""
    if not part:
        return None
    target = str(part["_target_"])
    arguments = {str(n): value for n, value in part.items() if value is not None and not str(n).startswith("_")}
    try:
        if seed is not None and "seed" in inspect.signature(get_object(target)).parameters:
            arguments.setdefault("seed", seed)
        return instantiate({"_target_": target, **arguments}, _convert_="all")
    except Exception as error:
        why = " ".join(str(error).split())
        raise UsageError(f"hydra.sweeper.{kind} cannot be made by Optuna {optuna.__version__}: {why}") from error


def _begun(study: Study, space: Mapping[str, Swept], keys: Keys) -> int:
    """How many trials there are to run: all combinations where none are asked for, which then wait in the study."""
    if keys["n_trials"] is not None:
        if not space:
            raise UsageError(
                "no parameter is swept, so all jobs would be the same: give one such as 'lr=interval(0, 1)'"
            )
        return int(keys["n_trials"])
    if (endless := next((name for name, part in space.items() if not part.values), None)) is not None:
        raise UsageError(f"{endless} is an interval, whose values nobody can count: give hydra.sweeper.n_trials=20")
    points = itertools.product(*(part.values for part in space.values()))
    known = bool(study.trials)  # in a storage
    for point in points:
        study.enqueue_trial(dict(zip(space, point, strict=True)), skip_if_exists=known)
    return sum(trial.state == TrialState.WAITING for trial in study.trials)


def _save(config: DictConfig, path: Path) -> None:
    with written_whole(path, "w") as file:
        file.write(OmegaConf.to_yaml(config))
