"""The sweeper of Hydra (`hydra_plugins.hydra_mpitune`): each job is a trial of a study of Optuna.

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import optuna
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Transformer
from hydra.core.singleton import Singleton
from hydra.core.utils import JobStatus, run_job, setup_globals
from hydra.errors import HydraException
from hydra.types import HydraContext, TaskFunction
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf, open_dict
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from mpitune.errors import Caller, StudyError, UsageError, called_from, mended
from mpitune.optimize.attempts import AttemptFolder
from mpitune.optimize.objectives import ObjectiveTrial, as_current
from mpitune.optimize.spaces.parameters import shown
from mpitune.optimize.strategies.base import TrialSegment
from mpitune.optimize.tuning import require_whole
from mpitune.options import RunOptions
from mpitune.optuna.optimizing import optimize
from mpitune.ranks import launch
from mpitune.settings import require_seconds
from mpitune.storage.files import written_whole
from mpitune.studies import dismiss, join, serve

Space = dict[str, BaseDistribution]
Numbers = dict[int | float, str]  # of a range, in Hydra's order, with Hydra's texts
MOST_TRIED = 50  # values of a choice that are composed before any job begins
SILENT = "returned nothing"  # the user attribute of a job that did
BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


def sweep(
    keys: Mapping[str, Any],
    known: Sequence[str],
    context: HydraContext,
    task: TaskFunction,
    config: DictConfig,
    arguments: Sequence[str],
) -> None:
    """Run all jobs. Under mpirun or srun rank 0 does, and the others make them.

    Args:
        keys: what `hydra.sweeper` has.
        known: what it may have.
        context: how Hydra loads configurations.
        task: the application.
        config: its configuration, with Hydra's own.
        arguments: overrides of the command line.
    """
    try:
        with called_from(Caller.HYDRA), _led() as leads:
            if leads:
                for key in keys.keys() - set(known):
                    raise UsageError(f"hydra.sweeper has {key!r}: {mended(key, known)}")
                _sweep(keys, context, task, config, arguments)
    except (StudyError, UsageError) as error:
        if not launch.launched().rank:  # the same on all ranks
            print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(int(error.status))


@contextmanager
def _led() -> Iterator[bool]:
    """Whether this is rank 0. The others do what it asks for, until this ends."""
    transport = join(RunOptions(heartbeat_timeout=0.0))
    if transport.rank:
        serve(transport)
        yield False
        return
    if launch.others_wait or transport.size == 1:  # as under python -m mpitune
        yield True
        return
    launch.others_wait = True
    try:
        yield True
    finally:
        launch.others_wait = False
        dismiss(transport)


def _sweep(
    keys: Mapping[str, Any], context: HydraContext, task: TaskFunction, config: DictConfig, arguments: Sequence[str]
) -> None:
    if keys["join"] and keys["results"] is None:
        raise UsageError("hydra.sweeper.join=true needs results that all jobs see: give hydra.sweeper.results")
    if not 0 <= (rate := float(keys["max_failure_rate"])) <= 1:
        raise UsageError(f"hydra.sweeper.max_failure_rate={rate:g}: give a part of all jobs, 0 to 1")
    require_seconds("hydra.sweeper.timeout", keys["timeout"])
    if (launcher := config.hydra.launcher.get("_target_", BASIC)) != BASIC:
        raise UsageError(f"hydra/launcher={launcher}: mpitune starts the jobs itself, so leave hydra/launcher out")
    words = [f"{name}={value}" for name, value in (keys["params"] or {}).items()]
    try:
        parsed = OverridesParser.create(config_loader=context.config_loader).parse_overrides([*words, *arguments])
    except HydraException as error:  # of params, as Hydra has read the command line before
        why = str(error).splitlines()[0]
        raise UsageError(f"hydra.sweeper.params: {why}: give sweeps of Hydra, such as lr: interval(0.1, 1)") from error
    space: Space = {str(name): _given(str(name), given) for name, given in (keys["search_space"] or {}).items()}
    ranges, line = dict[str, Numbers](), dict[str, str | None]()
    before = random.getstate()
    random.seed(keys["seed"] or 0)  # shuffle(...) has the same order when the command is repeated
    for override in {override.get_key_element(): override for override in parsed}.values():  # the last word counts
        name = override.get_key_element()
        space.pop(name, None)
        if override.is_range_sweep():
            ranges[name] = _numbers(override)
        if override.is_sweep_override():
            space[name], line[name] = _distribution(override), None
        else:
            line[name] = f"{name}={override.get_value_element_as_str()}"
    random.setstate(before)
    study = _study(keys, space)
    job = Job(
        context, task, config, space, line,
        {name: known for name, known in ranges.items() if isinstance(space[name], FloatDistribution)},
        _located(keys["custom_search_space"]), len(study.directions) == 1 and _is_whole(keys), Singleton.get_state(),
        os.urandom(4).hex() if keys["join"] else "",
    )  # fmt: skip
    n_trials = _begun(study, space, ranges, keys)
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
    optimize(
        study, job, n_trials, keys["timeout"], catch=Exception if rate else (), callbacks=() if rate else [_end_failed],
        space=" ".join([*(str(override.input_line) for override in parsed), *_beside(keys, config)]),
        window=keys["n_jobs"] if keys["window"] is None else keys["window"], options=options,
    )  # fmt: skip
    complete = study.get_trials(states=[TrialState.COMPLETE])
    silent = [trial.number for trial in complete if SILENT in trial.user_attrs]
    if 0 < len(silent) < len(complete):
        raise StudyError(f"job {silent[0]} returned nothing, and others a number: return a number in each")
    failed = [trial.number for trial in study.trials if trial.state == TrialState.FAIL]
    if len(failed) > rate * len(study.trials):
        raise StudyError(
            f"{len(failed)} of {len(study.trials)} jobs have failed (the first is job {failed[0]}), more than "
            f"hydra.sweeper.max_failure_rate={rate:g}"
        )
    if complete and not silent:
        _save(OmegaConf.create(_found(study)), folder / "optimization_results.yaml")


def _end_failed(study: Study, trial: FrozenTrial) -> None:
    """A callback: the first failure ends the sweep, also one that raises nothing."""
    if trial.state == TrialState.FAIL:
        study.stop()


def _beside(keys: Mapping[str, Any], config: DictConfig) -> list[str]:
    """What is searched that no override says, and a digest of the application's own configuration."""
    searched = [f"{name}={keys[name]}" for name in ("search_space", "custom_search_space") if keys[name]]
    own = OmegaConf.masked_copy(config, [str(name) for name in config if name != "hydra"])
    return [*searched, f"(configuration {hashlib.sha256(OmegaConf.to_yaml(own).encode()).hexdigest()[:8]})"]


def _study(keys: Mapping[str, Any], space: Space) -> Study:
    directions = keys["direction"] if OmegaConf.is_list(keys["direction"]) else [keys["direction"]]
    named = [str(getattr(direction, "name", direction)) for direction in directions]
    if wrong := [name for name in named if name not in ("minimize", "maximize")]:
        raise UsageError(f"hydra.sweeper.direction={wrong[0]}: give minimize or maximize")
    sampler = None if _is_grid(keys) else _part("sampler", keys["sampler"], keys["seed"])
    pruner = _part("pruner", keys["pruner"], None)
    return optuna.create_study(
        study_name=keys["study_name"], storage=keys["storage"], sampler=sampler, pruner=pruner, directions=named,
        load_if_exists=True,
    )  # fmt: skip


def _is_grid(keys: Mapping[str, Any]) -> bool:
    return str((keys["sampler"] or {}).get("_target_", "")).endswith(".GridSampler")


def _is_whole(keys: Mapping[str, Any]) -> bool:
    """Whether each combination is a job, which nothing is learned for."""
    return keys["n_trials"] is None or _is_grid(keys)


def _part(kind: str, given: Any, seed: int | None) -> Any:
    """A sampler or pruner of Optuna from its configuration. Raises UsageError for an argument that it does not have."""
    if not given:
        return None
    said = {str(name): value for name, value in given.items() if value is not None and not str(name).startswith("_")}
    target = _located(str(given["_target_"]))
    known = inspect.signature(target).parameters
    if seed is not None and "seed" in known:
        said.setdefault("seed", seed)
    if unknown := [name for name in said if name not in known]:
        raise UsageError(
            f"hydra.sweeper.{kind}.{unknown[0]}: {given['_target_']} of Optuna {optuna.__version__} does not have it"
        )
    return instantiate({"_target_": given["_target_"], **said}, _convert_="all")


def _located(name: str | None) -> Any:
    try:
        return None if name is None else get_object(name)
    except Exception as error:
        raise UsageError(f"{name} cannot be imported: {error}") from error


def _begun(study: Study, space: Space, ranges: Mapping[str, Numbers], keys: Mapping[str, Any]) -> int:
    """How many trials there are to run: all combinations where none are asked for, which then wait in the study."""
    require_whole("hydra.sweeper.n_trials", n_trials := keys["n_trials"], 1)
    if not _is_whole(keys):
        if not space and keys["custom_search_space"] is None:
            raise UsageError(
                "no parameter is swept, so all jobs would be the same: give one such as 'lr=interval(0, 1)'"
            )
        return int(n_trials)
    if keys["custom_search_space"] is not None:
        raise UsageError("hydra.sweeper.n_trials is missing: with custom_search_space nobody else knows how many")
    points = itertools.product(*(ranges.get(name) or _values(name, part) for name, part in space.items()))
    known = bool(study.trials)  # in a storage
    for point in itertools.islice(points, n_trials):
        study.enqueue_trial(dict(zip(space, point, strict=True)), skip_if_exists=known)
    return sum(trial.state == TrialState.WAITING for trial in study.trials)


def _values(name: str, part: BaseDistribution) -> list[Any]:
    """All values, in their order. Raises UsageError for an interval."""
    if isinstance(part, CategoricalDistribution):
        return list(part.choices)
    if isinstance(part, IntDistribution | FloatDistribution) and not part.log and part.step:
        return [part.low + n * part.step for n in range(round((part.high - part.low) / part.step) + 1)]
    raise UsageError(f"{name} is an interval, whose values nobody can count: give hydra.sweeper.n_trials=20")


def _distribution(override: Override) -> BaseDistribution:
    """What a sweep of Hydra's grammar is to Optuna."""
    sweep: Any = override.value()
    if override.is_interval_sweep():
        low, high, log = sweep.start, sweep.end, "log" in sweep.tags
        if low > high or (log and low <= 0):
            fix = "above 0" if low <= high else "below the other"
            raise UsageError(f"{override.input_line}: give a lower end {fix}")
        if isinstance(low, int) and isinstance(high, int):
            return IntDistribution(low, high, log=log)
        return FloatDistribution(low, high, log=log)
    values: list[Any] = list(_numbers(override) if override.is_range_sweep() else override.sweep_iterator())
    if not values:
        raise UsageError(f"{override.input_line}: there is no value")
    if override.is_range_sweep():
        kind = IntDistribution if isinstance(values[0], int) else FloatDistribution
        return kind(min(values), max(values), step=abs(sweep.step))
    plain = [value if isinstance(value, int | float) else None for value in values]
    texts = map(Transformer.str, values)  # shuffle() has another order whenever it is asked
    return CategoricalDistribution([text if value is None else value for value, text in zip(plain, texts, strict=True)])


def _numbers(override: Override) -> Numbers:
    """Those of a range. Optuna counts its steps in decimals, Hydra in bits: 0.24 is "0.24000000000000002" there."""
    sweep: Any = override.value()
    try:
        values = [*sweep.range()]
    except (HydraException, ValueError) as error:
        raise UsageError(f"{override.input_line}: {error}") from error
    start, step = Decimal(str(sweep.start)), Decimal(str(sweep.step))
    numbers = [each if isinstance(each, int) else float(start + n * step) for n, each in enumerate(values)]
    pairs = list(zip(numbers, map(Transformer.str, values), strict=True))
    if sweep.shuffle:
        random.shuffle(pairs)
    return dict(pairs)


def _given(name: str, given: Any) -> BaseDistribution:
    """A distribution of the older `search_space` of hydra-optuna-sweeper."""
    kind = str(getattr(given["type"], "name", given["type"]))
    low, high, log, step = (given.get(key) for key in ("low", "high", "log", "step"))
    if kind == "categorical":
        return CategoricalDistribution(list(given["choices"]))
    if kind == "int":
        return IntDistribution(int(low), int(high), bool(log), int(step or 1))
    if kind == "float":
        return FloatDistribution(float(low), float(high), bool(log), step)
    raise UsageError(f"hydra.sweeper.search_space.{name}.type={kind}: give int, float or categorical")


@dataclass
class Job:
    """The objective: Hydra's job, with its own configuration, folder and log."""

    context: HydraContext
    task: TaskFunction
    config: DictConfig
    space: Space
    line: dict[str, str | None]  # the command line in its order, None where a parameter is swept
    ranges: dict[str, Numbers]  # those of fractions
    custom: Any  # a user's function of the configuration and a trial, which suggests more
    may_be_silent: bool  # return nothing, as it is started for what it writes
    singletons: Any
    joined: str  # digits of this job where others have joined, see `AttemptFolder`

    @property
    def __wrapped__(self) -> TaskFunction:
        return self.task  # whose source says whether a study goes on with the same one

    def check(self) -> None:
        """Raise UsageError for overrides that Hydra cannot compose, before any job begins."""
        options = {
            name: list(part.choices) if isinstance(part, CategoricalDistribution) else [part.low, part.high]
            for name, part in self.space.items()
        }  # fmt: skip
        points = [{name: values[0] for name, values in options.items()}]
        points += [{**points[0], name: value} for name, values in options.items() for value in values[1:MOST_TRIED]]
        for point in points:
            try:
                self._composed(point)
            except Exception as error:
                said = " ".join(self._word(name, value) for name, value in point.items())
                raise UsageError(f"the job {said} cannot be configured: {str(error).strip()}") from error

    def _composed(self, params: Mapping[str, Any]) -> DictConfig:
        line = {**{name: None for name in params if name not in self.line}, **self.line}  # which counts more
        words = [self._word(name, params[name]) if text is None else text for name, text in line.items()]
        return self.context.config_loader.load_sweep_config(self.config, words)

    def _word(self, name: str, value: Any) -> str:
        """An override, as Hydra reads it. A number of a range has the text of the one that is nearest."""
        if numbers := self.ranges.get(name):
            return f"{name}={numbers[min(numbers, key=lambda number: abs(number - value))]}"
        return f"{name}={'null' if value is None else value}"

    def __call__(self, trial: optuna.Trial) -> Any:
        for name, part in self.space.items():
            trial._suggest(name, part)
        if self.custom is not None:
            self.custom(self.config, trial)
        Singleton.set_state(self.singletons)
        setup_globals()
        config = self._composed(trial.params)
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = trial.number  # as with Hydra's own sweeper
        HydraConfig.instance().set_config(config)
        folder = Path(config.hydra.sweep.dir, config.hydra.sweep.subdir).absolute()
        device = "cuda" if os.environ.get("CUDA_VISIBLE_DEVICES") else "cpu"  # as a worker has set it
        segment, pruning = TrialSegment(trial.number, {}), Pruning(trial)
        own = AttemptFolder(segment, folder, self.joined)
        given = ObjectiveTrial(dict(trial.params), device, 0, 0, segment, 0, own, _begin=lambda _: pruning)
        try:
            with as_current(given):
                ended = run_job(
                    self.task, config, job_dir_key="hydra.sweep.dir", job_subdir_key="hydra.sweep.subdir",
                    hydra_context=self.context,
                )  # fmt: skip
        finally:
            for name, value in given.user_attrs.items():
                trial.set_user_attr(name, value)
        if ended.status != JobStatus.COMPLETED:
            raise ended._return_value
        own.finish()
        if ended.return_value is None and self.may_be_silent:
            trial.set_user_attr(SILENT, True)
            return 0.0
        if ended.return_value is None or isinstance(ended.return_value, str | Mapping):
            said = shown(ended.return_value)
            raise UsageError(
                f"job {trial.number} returned {said}: return a number, such as the loss, from the function"
            )
        return ended.return_value


class Pruning:
    """What takes in the reports of a job: Optuna's pruner decides by them."""

    is_over = False

    def __init__(self, trial: optuna.Trial):
        self._trial, self._last = trial, 0

    def add(self, values: Any, step: int | None) -> None:
        """Take in the values of a step, by name or one number. Raises TrialPruned."""
        if len(self._trial.study.directions) > 1:
            return  # Optuna prunes by one value
        value = next(iter(values.values())) if isinstance(values, Mapping) else values
        self._last = self._last + 1 if step is None else step
        self._trial.report(float(value), self._last)
        if self._trial.should_prune():
            raise optuna.TrialPruned


def _save(config: DictConfig, path: Path) -> None:
    with written_whole(path, "w") as file:
        file.write(OmegaConf.to_yaml(config))


def _found(study: Study) -> dict[str, Any]:
    """As hydra-optuna-sweeper writes it."""
    said: dict[str, Any] = {"name": "mpitune"}
    if len(study.directions) == 1:
        said |= {"best_params": study.best_params, "best_value": study.best_value}
    else:
        said["solutions"] = [{"params": trial.params, "values": trial.values} for trial in study.best_trials]
    return said
