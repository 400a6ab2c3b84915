"""Ray's own controller of a study, whose trials are stages in our workers. Time decides nothing.

It asks the searcher for trials in the order of numbers, and processes the results of a stage in the order in which
stages were asked for. A scheduler that stops trials has a copy in the worker (`Deciding`), which knows what rank 0 did
as it asked for the stage: what that decides counts. One that pauses trials says beforehand after how much; so rank 0
hears of that stage, and Ray's own scheduler goes on from there.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ray.exceptions import RayTaskError
from ray.train._internal.session import _FutureTrainingResult, _TrainingResult
from ray.tune import Checkpoint
from ray.tune.error import TuneError
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial as RayTrial
from ray.tune.experiment.trial import _get_trainable_kwargs
from ray.tune.registry import get_trainable_cls
from ray.tune.result import RESULT_DUPLICATE
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    TrialScheduler,
)
from ray.tune.search import Searcher
from ray.tune.search.sample import Domain
from ray.tune.stopper import NoopStopper
from ray.tune.utils import flatten_dict

from mpitune.errors import UsageError, needs
from mpitune.identity import header_text, identity, label_of, without_address
from mpitune.optimize.plain import whole
from mpitune.optimize.strategies.base import trial_of
from mpitune.optimize.window import Proposed
from mpitune.processes.process import packed, unpacked_error
from mpitune.ray import stage as stages
from mpitune.ray.stage import Event, Stage
from mpitune.source import is_own
from mpitune.trial import Gang, Result, Trial, seed_of

CONTINUE = TrialScheduler.CONTINUE
TIMES = "time_total_s", "time_this_iter_s", "time_since_restore", "timestamp"
NOT_HERE = {  # schedulers, and what to do
    "ResourceChangingScheduler": "a trial has what with_resources says, so give the scheduler that it wraps",
    "PopulationBasedTrainingReplay": "replay the policy in the trainable",
    "HyperBandForBOHB": "give ASHAScheduler and OptunaSearch",
}


class _Saved(_FutureTrainingResult):
    """The checkpoint that a worker has saved."""

    def __init__(self, result: _TrainingResult | None):
        self.result = result

    def resolve(self, block: bool = True) -> _TrainingResult | None:
        return self.result


class Heard:
    """A scheduler or a stopper on rank 0, and what it hears, for its copies in workers."""

    def __init__(self, own: Any, part: int, events: list[Event]):
        self._own, self._part, self._events = own, part, events
        self.counts: str | None = None  # what a copy has decided of the result that is told now
        self._stopped = set[str]()  # trials that it has stopped, though its copy did not: some can hear no more of them

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._own, name)
        return partial(self._hear, name, value) if name.startswith("on_trial_") else value

    def _hear(self, name: str, call: Any, controller: Any, trial: RayTrial, *told: Any) -> Any:
        if trial.trial_id in self._stopped and name == "on_trial_result":
            return self.counts
        self._events.append((self._part, name, trial.trial_id, bare(told[0]) if told else None))
        decision = call(controller, trial, *told)
        if decision == TrialScheduler.STOP and not isinstance(self._own, AsyncHyperBandScheduler):
            self._stopped.add(trial.trial_id)
        return decision if self.counts is None else self.counts

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self._events.append((self._part, "", trial_id, bare(result)))
        return bool(self._own(trial_id, result))


def _held(function: Any) -> dict[str, Any]:
    """The closure of a function; nothing of a class."""
    return dict(inspect.getclosurevars(function).nonlocals) if inspect.isfunction(function) else {}


def bare(result: dict[str, Any]) -> dict[str, Any]:
    """A result without its parameters."""
    return {name: value for name, value in result.items() if name.partition("/")[0] != "config"}


class Controller(TuneController):
    """What `tune.run` drives: one step is the whole study. It is also the `Source` of a window.

    Attributes:
        seed: of the study.
        deciding: what workers begin with: a scheduler and a stopper, see `Deciding`.
    """

    least, seed, n_trials = 1, 0, None
    run: Any  # the whole study, see `mpitune.ray.study`

    def __init__(self, **how: Any):
        super().__init__(**how)
        scheduler, stopper = how["scheduler"], how["stopper"] or NoopStopper()
        self._scheduler, self._has_stopper = scheduler, not isinstance(stopper, NoopStopper)
        self._pauses = isinstance(scheduler, PopulationBasedTraining | HyperBandScheduler)
        self._copied = not self._pauses and type(scheduler) is not FIFOScheduler
        self.deciding = packed((scheduler if self._copied else None, stopper if self._has_stopper else None))
        self._news: tuple[dict[str, bytes], list[Event]] = {}, []
        self._n_known = 0  # events that workers were told of
        if self._copied:
            self._scheduler_alg = Heard(scheduler, 0, self._news[1])
        if self._has_stopper:
            self._stopper = Heard(stopper, 1, self._news[1])
        self.trainables: dict[str, Any] = {}  # by name
        self.arrays: dict[str, np.ndarray] = {}  # large ones that they hold
        self.extras: dict[str, tuple[bytes, Any]] = {}  # of a stage what a journal has not: its error, and its results
        self.raised: Exception | None = None
        self._numbers, self._stages = dict[str, int](), dict[str, int]()  # by id: of the trial, and of its next stage
        self._folders = set[str]()  # of trials
        self._open = dict[str, RayTrial]()  # by key of the stage
        self._going_on: list[RayTrial] = []  # whose next stage comes first
        how["storage"].syncer.sync_timeout = 0  # no limit: clocks may jump
        if hasattr(self._search_alg, "_uuid_prefix"):
            self._search_alg._uuid_prefix = ""  # ids are numbers

    def resume(self, resume_config: Any) -> None:
        """The journal knows what was done: the study is asked again."""

    @property
    def resumed(self) -> bool:
        return False

    def _used_resources_string(self) -> str:
        return ""

    def get_live_trials(self) -> Any:
        return [trial for trial in self._trials if trial in self._live_trials]  # in their order

    def setup_experiments(self, experiments: Sequence[Any], total_num_samples: int) -> None:
        self._space = experiments[0].spec.get("config") or {}
        self.trainables = {each.spec["run"]: get_trainable_cls(each.spec["run"]) for each in experiments}
        super().setup_experiments(experiments, total_num_samples)

    @property
    def functions(self) -> dict[str, Any]:
        """What the user has written, with the values of `with_parameters`."""
        found: dict[str, Any] = {}
        for name, kind in self.trainables.items():
            own = next((one for one in kind.__mro__ if is_own(one.__module__)), None)
            found[name] = own or getattr(kind, "_trainable_func", kind)
            methods = [part for one in kind.__mro__ for part in vars(one).values()]
            for function in filter(inspect.isfunction, [*methods, *_held(found[name]).values()]):
                if (registry := (held := _held(function)).get("parameter_registry")) is not None:
                    found |= {key: registry.get(held["prefix"] + key) for key in held["keys"]}
        return found

    @property
    def timeout(self) -> float | None:
        """None where nothing ends the study but its trials."""
        return 0.0 if self._has_stopper else None

    def require_possible(self) -> None:
        """Raise UsageError for what cannot be honoured."""
        name, attribute = type(self._scheduler).__name__, getattr(self._scheduler, "_time_attr", "")
        if name in NOT_HERE:
            raise UsageError(f"scheduler {name} is not here: {NOT_HERE[name]}")
        if attribute in TIMES:
            raise UsageError(
                f"{name}(time_attr={attribute!r}) decides by the clock, which differs from run to run: "
                'give time_attr="training_iteration"'
            )

    def described(self) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
        """For the journal's header: the space, what proposes and decides, and what is searched for."""
        space = [f"{name}: {_of_space(value)}" for name, value in sorted(flatten_dict(self._space).items())]
        mode = getattr(self._scheduler, "_mode", None) or getattr(self._search_alg, "mode", None)
        goals = [f"{mode}imize {self._metric}"] if self._metric and mode else []
        return tuple(space), ", ".join(map(_said, (self._search_alg, self._scheduler))), tuple(goals)

    def begin(self, on_gpus: bool, most: int) -> None:
        """Seed what proposes, where the script has not. most: slots of a node."""
        self._on_gpus, self._most = on_gpus, most
        np.random.seed(self.seed)
        seed_searcher(self._search_alg, self.seed)

    def gang(self, trial: Trial) -> Gang | None:
        """The slots of a trial. Raises UsageError for resources that are not here."""
        factory = self._open[trial.key].placement_group_factory
        bundles = [bundle for bundle in factory.bundles if bundle]
        if other := {kind for bundle in bundles for kind in bundle} - {"CPU", "GPU", "memory", "object_store_memory"}:
            raise UsageError(f"a trial asks for {bundles}, but here are CPUs and GPUs alone: leave out {min(other)}")
        cpus, gpus = (math.ceil(sum(bundle.get(kind, 0) for bundle in bundles)) for kind in ("CPU", "GPU"))
        if gpus and not self._on_gpus:
            raise UsageError(f"a trial asks for {bundles}, but workers are CPUs: give --gpu all, or ask for no GPU")
        if len(bundles) > 1 and "SPREAD" in factory.strategy:
            return Gang(1, len(bundles))
        needed = gpus if self._on_gpus else min(cpus, self._most)  # without GPUs a trial has what there is
        return Gang(needed) if needed > 1 else None

    @property
    def is_late(self) -> bool:
        """Whether the study's time, or a stopper, has ended it."""
        return bool(self._stopper.stop_all())

    # Asking

    @property
    def ended(self) -> bool:
        return self.raised is not None or self.is_finished()

    def ask(self, most: int) -> Sequence[Proposed] | None:
        if self.ended:
            return None
        if self._going_on:
            return [self._proposed(self._going_on.pop(0))]
        while not self._pending_trials and self._next():
            pass
        trial = self._scheduler_alg.choose_trial_to_run(self._wrapped())
        return [] if trial is None else [self._proposed(trial)]

    def _next(self) -> bool:
        """Ask the searcher for a trial, whose id is its number."""
        number, generate = len(self._numbers), RayTrial.generate_id
        random.seed(seed_of(self.seed, f"ask/{number}").generate_state(4).tobytes())
        RayTrial.generate_id = staticmethod(lambda: f"{number:05}")
        try:
            return not self._search_alg.is_finished() and self._update_trial_queue()
        finally:
            RayTrial.generate_id = generate

    def add_trial(self, trial: RayTrial) -> None:
        self._numbers.setdefault(trial.trial_id, len(self._numbers))
        trial.custom_dirname = trial.custom_dirname or str(trial).replace("/", "_")
        if not trial.relative_logdir:  # else Ray makes one up where another run has it
            name = trial._generate_dirname()
            name = f"{name}_{trial.trial_id}" if name in self._folders else name
            trial.relative_logdir = trial.storage.trial_dir_name = name
            self._folders.add(name)
        super().add_trial(trial)

    def _proposed(self, trial: RayTrial) -> Proposed:
        number, n = self._numbers[trial.trial_id], self._stages.get(trial.trial_id, 0)
        how = _get_trainable_kwargs(trial)
        self._set_trial_status(trial, RayTrial.RUNNING)
        if not n:
            self._callbacks.on_trial_start(iteration=self._iteration, trials=self._trials, trial=trial)
        self._stages[trial.trial_id] = n + 1
        params = {name: label_of(value) for name, value in flatten_dict(trial.config).items()}
        checkpoint, limit = trial.latest_checkpoint_result, self._limit(trial)
        origin = "" if checkpoint is None else "/".join(Path(checkpoint.checkpoint.path).parts[-2:])
        is_staged = self._pauses or self._copied or trial.max_failures != 0
        given = {"from": origin, "limit": limit and list(limit)}
        ours = trial_of(number, params, n if is_staged else None, given=given)
        self._open[ours.key] = trial
        stage = Stage(
            trial.trainable_name, trial.trial_id, how, checkpoint, trial.stopping_criterion, trial.checkpoint_freq,
            trial.checkpoint_at_end, limit, self._n_known + len(self._news[1]),
        )  # fmt: skip
        self._news[0][ours.key] = packed(stage)
        return Proposed((ours,))

    def _limit(self, trial: RayTrial) -> tuple[str, float] | None:
        """After how much of what the scheduler will pause it."""
        scheduler = self._scheduler
        if isinstance(scheduler, PopulationBasedTraining):
            last = scheduler._trial_state[trial].last_perturbation_time
            return scheduler._time_attr, max(last + scheduler._perturbation_interval, scheduler._burn_in_period)
        if isinstance(scheduler, HyperBandScheduler):
            bracket = scheduler._trial_info[trial][0]
            return (scheduler._time_attr, bracket._cumul_r) if bracket._halves or bracket.stop_last_trials else None
        return None

    def news(self) -> list[bytes]:
        """For workers: stages that come next, and what the scheduler and the stopper have heard since."""
        if not any(self._news):
            return []
        content = packed(self._news)
        self._n_known += len(self._news[1])
        self._news[0].clear()
        self._news[1].clear()
        return [content]

    # Telling

    def tell(self, proposed: Proposed, results: Sequence[Result]) -> bool:
        """Take in what became of a stage, as Ray's controller does; returns whether the study is over."""
        (ours,), (result,) = proposed.batch, results
        trial = self._open.pop(ours.key)
        raised, exact = self.extras.pop(ours.key, (b"", None))
        if not trial.is_finished():
            try:
                self._tell(trial, result, raised, exact)
                self._stop_experiment_if_needed()
            except Exception as error:  # of a callback, a searcher or a metric that is not there
                self.raised = error
        return self.ended

    def _tell(self, trial: RayTrial, result: Result, raised: bytes, exact: Any) -> None:
        kept = result.ending.kept or {"end": stages.RAISED, "results": []}
        end, told = kept["end"], whole(kept["results"]) if exact is None else exact
        for n, (metrics, checkpoint) in enumerate(told, 1):
            if self._copied:
                decided = {stages.STOPPED: TrialScheduler.STOP, stages.PAUSED: None}
                self._scheduler_alg.counts = decided.get(end, CONTINUE) if n == len(told) else CONTINUE
            self._tell_one(trial, {**metrics, "config": trial.config}, checkpoint)
            decision = self._queued_trial_decisions.pop(trial.trial_id, None)
            if decision == TrialScheduler.STOP or (n == len(told) and end == stages.STOPPED):
                return self._execute_action(trial, TrialScheduler.STOP)
            if n == len(told) and end == stages.PAUSED:
                return self._execute_action(trial, decision)
        if end == stages.RAISED:
            cause = result.ending.cause or result.error or ""
            error = unpacked_error(raised) if raised else TuneError(cause)
            self._trial_task_failure(trial, RayTaskError(trial.trainable_name, cause, error))
        else:
            self._process_trial_result(trial, {RESULT_DUPLICATE: True})
            self._maybe_execute_queued_decision(trial)

    def _tell_one(self, trial: RayTrial, metrics: dict[str, Any], checkpoint: str | None) -> None:
        """Process a result, and before it its checkpoint, which other trials may go on from."""
        if checkpoint is not None:
            place = Checkpoint(str(Path(trial.storage.trial_fs_path, checkpoint)), trial.storage.storage_filesystem)
            self._process_trial_save(trial, _TrainingResult(checkpoint=place, metrics=metrics))
            self._callbacks.on_trial_save(iteration=self._iteration, trials=self._trials, trial=trial)
        self._process_trial_result(trial, metrics)

    # What Ray's controller asks of its actors

    def _schedule_trial_train(self, trial: RayTrial) -> None:
        self._going_on.append(trial)

    def _schedule_trial_save(self, trial: RayTrial, result: Any = None) -> _Saved:
        return _Saved(trial.latest_checkpoint_result)

    def _schedule_trial_pause(self, trial: RayTrial, should_checkpoint: bool = True) -> None:
        self._set_trial_status(trial, RayTrial.PAUSED)

    def _schedule_trial_stop(self, trial: RayTrial, exception: Exception | None = None) -> None:
        super()._schedule_trial_stop(trial, exception)
        self._mark_trial_to_checkpoint(trial)

    def step(self) -> None:
        """Run the whole study."""
        self.run()
        self._should_stop_experiment = True
        self._stop_experiment_if_needed()
        self._search_alg.set_finished()
        if self.raised is not None:
            raise self.raised


def seed_searcher(searcher: Any, seed: int) -> None:
    """Seed its random numbers, unless the script has."""
    if hasattr(searcher, "searcher"):
        return seed_searcher(searcher.searcher, seed)
    given = getattr(searcher, "_mpitune_given", {})
    if not isinstance(searcher, Searcher) or any(given[name] is not None for name in given if "seed" in name):
        return None
    with needs("optuna", "search"):
        from mpitune.optimize.strategies.view import reseed, seed_in
    if seed_in(getattr(searcher, "_sampler", None)) is None:
        reseed(searcher, f"{seed}/searcher")
    return None


def _of_space(value: Any) -> str:
    """A text that only an equal part of a space has."""
    if not isinstance(value, Domain):
        return header_text(value)
    return without_address(f"{type(value).__name__} {value.domain_str:.100} #{identity(value)[:12]}")


def _said(part: Any) -> str:
    """A text of a searcher or scheduler with its settings that are numbers and texts."""
    within = getattr(part, "searcher", None)
    known = {} if within is None else {"searcher": _said(within)}
    plain = {n: v for n, v in vars(part).items() if isinstance(v, str | int | float) and n not in ("_uuid_prefix",)}
    return f"{type(part).__name__}({', '.join(f'{name}={value}' for name, value in {**plain, **known}.items())})"
