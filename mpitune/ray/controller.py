"""Ray's own controller of a study, whose trials are stages in our workers. Time decides nothing.

It asks the searcher for trials in the order of numbers, and processes the results of a stage in the order in which
stages were asked for.
"""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ray.exceptions import RayTaskError
from ray.train._internal import checkpoint_manager
from ray.train._internal.session import _TrainingResult
from ray.train._internal.storage import _delete_fs_path, _exists_at_fs_path
from ray.tune import Checkpoint
from ray.tune.callback import CallbackList
from ray.tune.error import TuneError
from ray.tune.execution.tune_controller import TuneController, logger
from ray.tune.experiment import Trial as RayTrial
from ray.tune.experiment.trial import _get_trainable_kwargs
from ray.tune.registry import get_trainable_cls
from ray.tune.result import EXPR_ERROR_FILE, RESULT_DUPLICATE
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler
from ray.tune.search import Searcher
from ray.tune.search.sample import Domain
from ray.tune.stopper import ExperimentPlateauStopper, TimeoutStopper
from ray.tune.utils import flatten_dict

from mpitune.errors import UsageError, needs
from mpitune.identity import header_text, identity, label_of, without_address
from mpitune.optimize.plain import say_changed
from mpitune.optimize.strategies.base import trial_of
from mpitune.optimize.window import Proposed
from mpitune.processes.process import packed, unpacked_error
from mpitune.ray import core, schedulers
from mpitune.ray import stage as stages
from mpitune.ray.stage import Stage
from mpitune.source import is_own
from mpitune.trial import Gang, Result, Trial, seed_of

CONTINUE, STOP, PAUSE = TrialScheduler.CONTINUE, TrialScheduler.STOP, TrialScheduler.PAUSE
# Of searchers, no settings; nor is `_space` where hyperopt has it sorted in `domain`:
STATE = "_uuid_prefix", "_finished", "_total_samples", "_experiment", "_iterators", "_trial_generator", "searcher"


class Controller(TuneController):
    """What `tune.run` drives: one step is the whole study. It is also the `Source` of a window."""

    least, seed, seed_of_random, n_trials, is_cut = 1, 0, 0, None, False
    _callbacks: Any
    run: Any  # the whole study, see `mpitune.ray.study`

    def __init__(self, **how: Any):
        super().__init__(**{**how, "resume_config": None})  # the journal knows what was done
        self.is_restored = how["resume_config"] is not None
        self.scheduler, stopper = how["scheduler"], how["stopper"]
        if isinstance(self.scheduler, AsyncHyperBandScheduler | MedianStoppingRule):  # which stop trials in workers
            self._scheduler_alg = schedulers.Decided(self.scheduler)
        parts = [] if stopper is None else getattr(stopper, "_stoppers", [stopper])
        self._deciding = [part for part in parts if not isinstance(part, TimeoutStopper)]  # by numbers
        self.stoppers = [part for part in self._deciding if not isinstance(part, ExperimentPlateauStopper)]  # of trials
        self.timeout = None if stopper is None else 0.0  # None: nothing ends the study but its trials
        self.trainables: dict[str, Any] = {}  # by name
        self.arrays: dict[str, np.ndarray] = {}  # large ones that they hold
        self.extras: dict[str, tuple[bytes, Any]] = {}  # of a stage what a journal has not: its error, and its results
        self.raised: Exception | None = None
        self._told = set[str]()
        self._news: dict[str, bytes] = {}
        self._numbers, self._stages = dict[str, int](), dict[str, int]()  # by id: of the trial, and of its next stage
        self._folders = set[str]()  # of trials
        self._open = dict[str, tuple[RayTrial, str]]()  # by key of the stage; with the checkpoint that it needs
        self._unwanted = dict[str, Any]()  # checkpoints that go once nothing needs them, with their file systems
        self._going_on: list[RayTrial] = []  # whose next stage comes first
        how["storage"].syncer.sync_timeout = 0  # no limit: clocks may jump
        self._search_alg._uuid_prefix = ""  # ids are numbers

    def get_live_trials(self) -> Any:
        return [trial for trial in self._trials if trial in self._live_trials]  # in their order

    def setup_experiments(self, experiments: Sequence[Any], total_num_samples: int) -> None:
        self._spec = experiments[0].spec
        self.trainables = {each.spec["run"]: get_trainable_cls(each.spec["run"]) for each in experiments}
        super().setup_experiments(experiments, total_num_samples)

    @property
    def functions(self) -> dict[str, Any]:
        """What the user has written, with the values of `with_parameters`."""
        functions: dict[str, Any] = {}
        for name, kind in self.trainables.items():
            call = getattr(kind, "_trainable_func", None)
            functions[name] = next((one for one in kind.__mro__ if is_own(one.__module__)), call or kind)
            function = call and inspect.getclosurevars(call).nonlocals.get("train_func")
            functions |= getattr(function or kind, core.PARAMETERS, {})
        return functions

    def described(self) -> tuple[tuple[str, ...], int, str, tuple[str, ...]]:
        """For the journal's header: space, num_samples, what proposes and decides, and what is searched for."""
        values = flatten_dict(self._spec.get("config") or {})
        space = [f"{name}: {_of_space(value)}" for name, value in sorted(values.items())]
        mode = getattr(self.scheduler, "_mode", None) or getattr(self._search_alg, "mode", None)
        goals = [f"{mode}imize {self._metric}"] if self._metric and mode else []
        parts = [*map(_settings_of, (self._search_alg, self.scheduler, *self._deciding)), f"stop={self._spec['stop']}"]
        return tuple(space), self._spec["num_samples"], ", ".join(parts), tuple(goals)

    def begin(self, on_gpus: bool, most: int) -> None:
        """Seed what proposes, where the script has not. most: slots of a node."""
        self._on_gpus, self._most = on_gpus, most
        core.numpy_random.seed(self.seed)
        seed_searcher(self._search_alg, self.seed)

    def gang(self, trial: Trial) -> Gang | None:
        """The slots of a trial. Raises UsageError for resources that are not here."""
        factory = self._open[trial.key][0].placement_group_factory
        bundles = [bundle for bundle in factory.bundles if bundle]
        here = {"CPU", "memory", "object_store_memory", *(["GPU"] if self._on_gpus else [])}
        if other := {kind for bundle in bundles for kind in bundle if bundle[kind]} - here:
            fix = "give --gpu all" if "GPU" in other else f"leave out {min(other)}"
            raise UsageError(f"a trial asks for {bundles}, which workers have not: {fix}")
        if len(bundles) > 1 and "SPREAD" in factory.strategy:
            return Gang(1, len(bundles))
        cpus, gpus = (math.ceil(sum(bundle.get(kind, 0) for bundle in bundles)) for kind in ("CPU", "GPU"))
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
            return [self._proposed(self._going_on.pop(0), starts=False)]
        while not self._pending_trials and self._next():
            pass
        trial = self._scheduler_alg.choose_trial_to_run(self._wrapped())
        return [] if trial is None else [self._proposed(trial)]

    def _next(self) -> bool:
        """Ask the searcher for a trial, whose id is its number."""
        number = len(self._numbers)
        words = seed_of(self.seed, f"ask/{number}/{self.seed_of_random}").generate_state(4)
        core.python_random.seed(words.tobytes())
        RayTrial.generate_id = staticmethod(lambda: f"{number:05}")
        return not self._search_alg.is_finished() and self._update_trial_queue()

    def add_trial(self, trial: RayTrial) -> None:
        self._numbers.setdefault(trial.trial_id, len(self._numbers))
        trial.custom_dirname = trial.custom_dirname or str(trial).replace("/", "_")
        if not trial.relative_logdir:  # else Ray makes one up where another run has it
            name = trial._generate_dirname()
            name = f"{name}_{trial.trial_id}" if name in self._folders else name
            trial.relative_logdir = trial.storage.trial_dir_name = name
            self._folders.add(name)
        super().add_trial(trial)

    def _proposed(self, trial: RayTrial, starts: bool = True) -> Proposed:
        number, n = self._numbers[trial.trial_id], self._stages.get(trial.trial_id, 0)
        how = _get_trainable_kwargs(trial)
        self._set_trial_status(trial, RayTrial.RUNNING)
        if starts:  # of one that never reports, as an actor of Ray says it when it starts:
            trial._default_result_or_future = {"trial_id": trial.trial_id, "config": trial.config}
            self._callbacks.on_trial_start(iteration=self._iteration, trials=self._trials, trial=trial)
        self._stages[trial.trial_id] = n + 1
        params = {name: label_of(value) for name, value in flatten_dict(trial.config).items()}
        checkpoint, limit = trial.latest_checkpoint_result, schedulers.limit(self.scheduler, trial)
        origin = "" if checkpoint is None else "/".join(Path(checkpoint.checkpoint.path).parts[-2:])
        is_staged = type(self.scheduler) is not FIFOScheduler or trial.max_failures != 0
        for_objective = {"from": origin, "limit": limit and list(limit)}
        stage_trial = trial_of(number, params, n if is_staged else None, for_objective=for_objective)
        self._open[stage_trial.key] = trial, "" if checkpoint is None else checkpoint.checkpoint.path
        about = {
            "trial_id": trial.trial_id, "stopping_criterion": dict(trial.stopping_criterion),
            "checkpoint_config": trial.run_metadata.checkpoint_manager.checkpoint_config,
        }  # fmt: skip
        rule = schedulers.in_worker(self.scheduler, trial)
        self._news[stage_trial.key] = packed(Stage(trial.trainable_name, how, about, checkpoint, limit, rule))
        return Proposed((stage_trial,))

    def news(self) -> list[bytes]:
        """For workers: stages that come next."""
        content, self._news = self._news, {}
        return [packed(content)] if content else []

    # Telling

    def tell(self, proposed: Proposed, results: Sequence[Result]) -> bool:
        """Take in what became of a stage, as Ray's controller does; returns whether the study is over."""
        (stage_trial,), (result,) = proposed.batch, results
        trial, _ = self._open.pop(stage_trial.key)
        kept = stages.read_kept(result.ending.for_door, stage_trial.segment.number)
        raised, exact = self.extras.pop(stage_trial.key, (b"", None))
        if not trial.is_finished():
            try:
                self._tell(trial, result, kept, raised, exact)
                self._stop_experiment_if_needed()
            except Exception as error:  # of a callback, a searcher or a metric that is not there
                self.raised = error if self._fail_fast == self.RAISE else TuneError(traceback.format_exc())
            self._delete_unwanted()
        return self.ended

    def _tell(self, trial: RayTrial, result: Result, kept: dict[str, Any], raised: bytes, exact: Any) -> None:
        end, told = kept["end"], kept["results"] if exact is None else exact
        say_changed(kept["changed"] if exact is None else (), self._told)
        for n, (metrics, checkpoint) in enumerate(told, 1):
            decided = {stages.STOPPED: STOP, stages.PAUSED: PAUSE}.get(end) if n == len(told) else None
            if isinstance(self._scheduler_alg, schedulers.Decided):
                self._scheduler_alg.counts = decided or CONTINUE
            storage, saved = trial.storage, None
            if checkpoint is not None:  # which other trials may go on from as they hear of the result
                saved = Checkpoint(str(Path(storage.trial_fs_path, checkpoint)), storage.storage_filesystem)
                self._process_trial_save(trial, _TrainingResult(checkpoint=saved, metrics=metrics))
            self._process_trial_result(trial, {**metrics, "config": trial.config})
            if saved is not None:
                self._say_saved(trial, saved)
            if any(part.stop_all() for part in self._deciding):
                return  # the study ends with this result
            decision = self._queued_trial_decisions.pop(trial.trial_id, None)
            if decided or decision == STOP:
                return self._execute_action(trial, decision if decided == PAUSE else STOP)
        if end == stages.RAISED:
            cause = result.ending.cause or result.error or ""
            error = unpacked_error(raised) if raised else TuneError(cause)
            if not trial.num_failures and (file := Path(trial.storage.trial_fs_path, EXPR_ERROR_FILE)).is_file():
                file.unlink()  # of an earlier process, which has told the same
            self._trial_task_failure(trial, RayTaskError(trial.trainable_name, cause, error).as_instanceof_cause())
        else:
            self._process_trial_result(trial, {RESULT_DUPLICATE: True})
            self._maybe_execute_queued_decision(trial)

    def _process_trial_save(self, trial: RayTrial, checkpoint_value: _TrainingResult) -> None:
        """Take in a checkpoint. Of those that Ray does not keep a stage may still begin with one."""
        checkpoint_manager._delete_fs_path = lambda fs, fs_path: self._unwanted.update({fs_path: fs})
        callbacks, self._callbacks = self._callbacks, CallbackList([])  # which first hear of the result
        super()._process_trial_save(trial, checkpoint_value)
        self._callbacks, checkpoint_manager._delete_fs_path = callbacks, _delete_fs_path

    def _say_saved(self, trial: RayTrial, checkpoint: Checkpoint) -> None:
        about: dict[str, Any] = {"iteration": self._iteration, "trials": self._trials, "trial": trial}
        try:
            self._callbacks.on_checkpoint(**about, checkpoint=checkpoint)
        except Exception:  # which Ray takes here alone
            logger.exception("Trial %s: a callback fails at checkpoint %s", trial, checkpoint)
        self._callbacks.on_trial_save(**about)

    def _delete_unwanted(self) -> None:
        clones = [] if self.ended else getattr(self.scheduler, "_trial_state", {}).values()  # of PBT
        known = [*(trial.checkpoint for trial in self._trials), *(state.last_checkpoint for state in clones)]
        needed = {each.path for each in known if each is not None} | {path for _, path in self._open.values()}
        for path in self._unwanted.keys() - needed:
            if _exists_at_fs_path(fs := self._unwanted.pop(path), path):  # else an earlier process has deleted it
                _delete_fs_path(fs, path)

    # What Ray's controller asks of its actors

    def _schedule_trial_train(self, trial: RayTrial) -> None:
        self._going_on.append(trial)

    def _schedule_trial_save(self, trial: RayTrial, result: Any = None) -> Any:
        return trial.checkpoint  # the worker has saved it

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
        self._trials.sort(key=lambda trial: self._numbers[trial.trial_id])  # one that was tried again came last
        if self.raised is not None:
            raise self.raised


def seed_searcher(searcher: Any, seed: int) -> None:
    """Seed its random numbers, unless the script has."""
    while hasattr(searcher, "searcher"):
        searcher = searcher.searcher
    bases = [base for base in type(searcher).__mro__ if issubclass(base, Searcher) and base is not Searcher]
    if not any(base.__module__.startswith("ray.") for base in bases):
        return  # the user's own has generators of its own
    arguments = {name: each.default for name, each in inspect.signature(bases[0]).parameters.items()}
    arguments |= getattr(searcher, "_mpitune_arguments", {})
    if all(arguments[name] is None for name in arguments if "seed" in name or name == "random_state"):
        with needs("optuna", "search"):
            from mpitune.optimize.strategies.view import reseed, seed_in
        if seed_in(getattr(searcher, "_sampler", None)) is None:
            study = getattr(searcher, "_ot_study", None)  # of Optuna, whose sampler it may have made itself
            reseed([searcher, getattr(study, "sampler", None)], f"{seed}/searcher")


def _of_space(value: Any) -> str:
    """A text that only an equal part of a space has."""
    if not isinstance(value, Domain):
        return header_text(value)
    return without_address(f"{type(value).__name__} {value.domain_str:.100} #{identity(value)[:12]}")


def _settings_of(part: Any) -> str:
    """A text of a searcher or scheduler: its settings that are numbers and texts, and digits of all that it is."""
    state = {n: v for n, v in vars(part).items() if n not in STATE and (n != "_space" or not hasattr(part, "domain"))}
    settings = {n: v for n, v in state.items() if isinstance(v, str | int | float)}
    settings |= {n: v for n, v in state.get("_mpitune_arguments", {}).items() if "seed" in n}
    if hasattr(part, "searcher"):
        settings["searcher"] = _settings_of(part.searcher)
    texts = [f"{name}={header_text(value)}" for name, value in sorted(state.items())]
    return f"{type(part).__name__}({', '.join(f'{n}={v}' for n, v in settings.items())}) #{identity(texts)[:12]}"
