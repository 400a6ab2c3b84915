"""A sweep of Hydra as a study of Optuna. Hydra's sweep grammar says what is searched.

Without `n_trials`, each combination of choices and ranges is a job, in the order of Hydra's own sweeper; else Optuna's
sampler proposes. There are no batches: trial n needs the results of trials up to n - n_jobs.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import optuna
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.singleton import Singleton
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from mpitune.errors import Caller, StudyError, UsageError, called_from, mended, print_error, typed
from mpitune.hydra.job import RETURNED_NOTHING, HydraJob
from mpitune.hydra.space import swept
from mpitune.optimize.tuning import require_whole
from mpitune.options import RunOptions
from mpitune.optuna.asking import SEED, attrs_of
from mpitune.optuna.optimizing import optimize
from mpitune.ranks import launch
from mpitune.settings import require_seconds
from mpitune.storage.files import written_whole
from mpitune.studies import join, led


def sweep(plugin: Any, known: Sequence[str], arguments: Sequence[str]) -> None:
    """Run all jobs that `arguments` ask for, with the keys of Hydra's plugin. Other ranks make the jobs of rank 0."""
    try:
        with called_from(Caller.HYDRA), led(join(RunOptions(heartbeat_timeout=0.0))) as leads:
            if leads:
                _require_possible(plugin.keys, known, plugin.config)
                _sweep(plugin, plugin.keys, plugin.config, arguments)
    except (StudyError, UsageError) as error:
        sys.exit(int(print_error(Path(sys.argv[0]).name, error, launch.launched().rank)))


def _sweep(plugin: Any, keys: Mapping[str, Any], config: DictConfig, arguments: Sequence[str]) -> None:
    words = [f"{name}={value}" for name, value in (keys["params"] or {}).items()]
    parser = OverridesParser.create(config_loader=plugin.hydra_context.config_loader)
    try:
        overrides = parser.parse_overrides([*words, *arguments])
    except HydraException as error:  # of params, as Hydra has read the command line before
        why = str(error).splitlines()[0]
        raise UsageError(f"hydra.sweeper.params: {why}: give sweeps of Hydra, such as lr: interval(0.1, 1)") from error
    is_whole = keys["n_trials"] is None  # each combination is a job, which nothing is learned for
    last = {override.get_key_element(): override for override in overrides}  # the last word counts
    before = random.getstate()
    random.seed(keys["seed"] or 0)  # shuffle(...) has the same order when the command is repeated
    space = {n: swept(override, is_whole) for n, override in last.items() if override.is_sweep_override()}
    random.setstate(before)
    line = {n: None if n in space else f"{n}={each.get_value_element_as_str()}" for n, each in last.items()}
    study = _study(keys)
    options = RunOptions(
        results=None if keys["results"] is None else Path(keys["results"]), join=bool(keys["join"]),
        workers=keys["workers"], gpu=None if keys["gpu"] is None else str(keys["gpu"]),
        trial_timeout=keys["trial_timeout"], track=keys["track"] or (), retry_failed=bool(keys["retry_failed"]),
    )  # fmt: skip
    job = HydraJob(
        plugin.hydra_context, plugin.task, config, {name: part for name, (part, _) in space.items()}, line,
        len(study.directions) == 1 and is_whole, Singleton.get_state(), os.urandom(4).hex() if options.join else "",
    )  # fmt: skip
    digest = f"(configuration {job.check()})"
    folder = Path(str(config.hydra.sweep.dir))
    path, rate = folder / "multirun.yaml", keys["max_failure_rate"]
    save = cache(partial(_save, config, path))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if options.results is None or not path.exists():
            save()
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror}): give another hydra.sweep.dir") from error

    def told(study: Study, trial: FrozenTrial) -> None:
        save()  # that of another sweep stays where this one is refused
        if trial.state == TrialState.FAIL and not rate:  # also of a job that raises nothing
            study.stop()

    optimize(
        study, job, _begun(study, {name: values for name, (_, values) in space.items()}, keys["n_trials"]),
        keys["timeout"], catch=Exception if rate else (), callbacks=[told], window=keys["n_jobs"],
        space=" ".join([*(str(override.input_line) for override in overrides), digest]), options=options,
    )  # fmt: skip
    again = f": give {typed('retry_failed')} to run them again" if keys["results"] and not keys["storage"] else ""
    _conclude(study, rate, folder, again)


def _require_possible(keys: Mapping[str, Any], known: Sequence[str], config: DictConfig) -> None:
    """Raise UsageError for keys that cannot be."""
    for key in keys.keys() - set(known):
        raise UsageError(f"hydra.sweeper has {key!r}: {mended(key, known)}")
    if keys["join"] and keys["results"] is None:
        raise UsageError("hydra.sweeper.join=true needs results that all jobs see: give hydra.sweeper.results")
    if not isinstance(rate := keys["max_failure_rate"], int | float) or not 0 <= rate <= 1:
        raise UsageError(f"hydra.sweeper.max_failure_rate={rate}: give a part of all jobs, 0 to 1")
    require_seconds("hydra.sweeper.timeout", keys["timeout"])
    for name in ("n_trials", "n_jobs"):
        require_whole(f"hydra.sweeper.{name}", keys[name], 1)
    if not (launcher := config.hydra.launcher.get("_target_", "BasicLauncher")).endswith("BasicLauncher"):
        raise UsageError(f"hydra/launcher={launcher}: mpitune starts the jobs itself, so leave hydra/launcher out")


def _study(keys: Mapping[str, Any]) -> Study:
    directions = keys["direction"] if OmegaConf.is_list(keys["direction"]) else [keys["direction"]]
    try:
        given = ({n: v for n, v in (keys[kind] or {}).items() if v is not None} for kind in ("sampler", "pruner"))
        sampler, pruner = (instantiate(part, _convert_="all") if part else None for part in given)
        study = optuna.create_study(
            study_name=keys["study_name"], storage=keys["storage"], directions=list(directions), load_if_exists=True,
            sampler=sampler, pruner=pruner,
        )  # fmt: skip
        seed = (keys["sampler"] or {}).get("seed")
        if isinstance(seed, int) and SEED not in attrs_of(study):  # which messages name as it was given
            study._storage.set_study_system_attr(study._study_id, SEED, seed)
        return study
    except Exception as error:
        why = " ".join(str(error).split())
        raise UsageError(f"hydra.sweeper: Optuna {optuna.__version__} cannot make the study: {why}") from error


def _begun(study: Study, values: Mapping[str, Sequence[Any]], n_trials: int | None) -> int:
    """How many trials there are to run: all combinations where none are asked for, which then wait in the study."""
    if n_trials is not None:
        return int(n_trials)
    known = bool(study.trials)  # in a storage
    for point in itertools.product(*values.values()):
        study.enqueue_trial(dict(zip(values, point, strict=True)), skip_if_exists=known)
    return sum(trial.state == TrialState.WAITING for trial in study.trials)


def _conclude(study: Study, rate: float, folder: Path, again: str = "") -> None:
    """Write down what was found. Raises StudyError where too many jobs have failed."""
    complete = study.get_trials(states=[TrialState.COMPLETE])
    silent = [trial.number for trial in complete if RETURNED_NOTHING in trial.user_attrs]
    if 0 < len(silent) < len(complete):
        raise StudyError(f"job {silent[0]} returned nothing, and others a number: return a number in each")
    failed = [trial.number for trial in study.trials if trial.state == TrialState.FAIL]
    if len(failed) > rate * len(study.trials):
        said = f"{len(failed)} of {len(study.trials)} jobs have failed (the first is job {failed[0]})"
        raise StudyError(f"{said}, more than hydra.sweeper.max_failure_rate={rate:g}{again}")
    if complete and not silent:  # as hydra-optuna-sweeper writes it
        best: dict[str, Any] = {
            "solutions": [{"params": one.params, "values": one.values} for one in study.best_trials]
        }
        if len(study.directions) == 1:
            best = {"best_params": study.best_params, "best_value": study.best_value}
        _save(OmegaConf.create({"name": "mpitune", **best}), folder / "optimization_results.yaml")


def _save(config: DictConfig, path: Path) -> None:
    with written_whole(path, "w") as file:
        file.write(OmegaConf.to_yaml(config))
