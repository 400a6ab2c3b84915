"""A study of Ray Tune for the engine: what `tune.run` and `Tuner.fit` are under `python -m mpitune`."""

from __future__ import annotations

import functools
import inspect
import os
import pickle
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial as RayTrial
from ray.tune.experimental.output import TuneReporterBase
from ray.tune.impl.tuner_internal import TunerInternal
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher
from ray.tune.tune import run as run_of_ray
from ray.tune.tune_config import ResumeConfig

from mpitune.devices.choose import CPU, choose
from mpitune.errors import Caller, StudyError, UsageError, called_from
from mpitune.optimize.door import Led, begun, own_folder
from mpitune.optimize.search import known_settings, slots_here
from mpitune.optimize.tuning import require_whole
from mpitune.optimize.window import rounds
from mpitune.options import RunOptions
from mpitune.port import Scheduling
from mpitune.processes.pickles import packed_call
from mpitune.processes.process import sendable
from mpitune.ray import core, schedulers
from mpitune.ray.controller import Controller
from mpitune.ray.stage import InWorker, read_kept
from mpitune.storage.files import written_whole
from mpitune.studies import run_study, stays
from mpitune.trial import Evaluation, Result, Trial, Window


@dataclass(frozen=True)
class RayTuning(Led):
    """One call of `tune.run`. The fields before `in_worker` are those of the journal's header."""

    fix = "report numbers, texts or lists of them"
    space: tuple[str, ...]
    num_samples: int
    strategy: str
    objectives: tuple[str, ...]
    seed: int
    seed_of_random: int  # what the script gave to `random.seed`, as a number; else 0
    window: int
    in_worker: InWorker = field(metadata={"changes_results": False})
    leader: Controller | None = field(default=None, metadata={"changes_results": False})

    def scheduling(self) -> Scheduling:
        how: dict[str, Any] = {} if self.leader is None else {"gang": self.leader.gang}
        return Scheduling(preload=("mpitune.ray.stage",), prints_plainly=True, **how)

    def news_for_workers(self) -> Sequence[bytes]:
        return () if self.leader is None else self.leader.news()

    def examine(self, trial: Trial, evaluation: Evaluation, kept: Evaluation | None) -> None:
        super().examine(trial, evaluation, kept)
        if refused := read_kept(evaluation.ending.for_door, trial.segment.number)["refused"]:
            raise UsageError(refused)


def take_over(options: RunOptions, window: int | None) -> None:
    """From now on studies of Ray Tune in this process are run here."""

    def made(kind: type[Searcher], *args: Any, **named: Any) -> Searcher:
        searcher = object.__new__(kind)
        with suppress(TypeError):  # which its own call raises, too
            bound = inspect.signature(kind.__init__).bind(searcher, *args, **named).arguments
            named |= {name: value for name, value in bound.items() if value is not searcher}
        searcher._mpitune_arguments = named  # whether it was given a seed is not to be seen otherwise
        return searcher

    def error_file(trial: RayTrial) -> str | None:
        path, storage = own_file.fget(trial), trial.storage
        if path is None or storage.storage_filesystem.type_name != "local":
            return path
        os.makedirs(storage.trial_fs_path, exist_ok=True)
        return os.path.join(storage.trial_fs_path, os.path.basename(path))  # which stays

    def started(reporter: Any, **how: Any) -> None:
        begin(reporter, **{**how, "tensorboard_path": how.get("tensorboard_path") and how["experiment_path"]})

    def set_goal(scheduler: TrialScheduler, metric: str | None, mode: str | None, **spec: Any) -> bool:
        scheduler._mode = mode or getattr(scheduler, "_mode", None)  # which FIFO forgets, and the report asks for
        return set_metric(scheduler, metric, mode, **spec)

    set_metric, TrialScheduler.set_search_properties = TrialScheduler.set_search_properties, set_goal
    own_file, begin = RayTrial.error_file, TuneReporterBase.experiment_started
    RayTrial.error_file, TuneReporterBase.experiment_started = property(error_file), started
    state_of, set_space = TunerInternal.__getstate__, TunerInternal._set_param_space_on_restore

    def fit_resume(self: TunerInternal, trainable: Any, space: Any) -> Any:
        if self._resume_config.errored != ResumeConfig.ResumeType.SKIP:
            core.refuse(UsageError(
                "Tuner.restore has resume_errored or restart_errored, but a trial that has failed stays so: leave them "
                "out, or give FailureConfig(max_failures=...) to the study"
            ))  # fmt: skip
        self._tuner_kwargs["resume_config"] = self._resume_config
        return self._fit_internal(trainable, space)  # like a new one: the journal knows what was done

    Searcher.__new__, TunerInternal._fit_resume = made, fit_resume
    TunerInternal.__getstate__ = lambda self: {**state_of(self), "_param_space": self._param_space}
    TunerInternal._set_param_space_on_restore = lambda self, param_space, **names: (
        param_space and set_space(self, param_space, **names)
    )
    Controller.run = functools.partialmethod(run, options, window)
    running: Any = sys.modules[run_of_ray.__module__]
    running.TuneController = Controller
    tune.with_parameters = functools.partial(core.with_parameters, tune.with_parameters)


def run(controller: Controller, options: RunOptions, window: int | None) -> None:
    """Run its study on all devices, or, within a trial or a child of the script, here, one trial after the other.

    Raises SystemExit, after a line, for what cannot be honoured: `Tuner.fit` makes a TuneError of any exception.
    """
    begin = functools.partial(take_over, options, None)
    place = Path(controller._storage.experiment_fs_path, "tuner.pkl")
    try:
        if stays():
            return _serially(controller, InWorker(_packed(controller), begin))
        with called_from(Caller.SCRIPT):
            schedulers.require_possible(controller.scheduler)
            require_whole("window", window, 1)
            for name, trainable in controller.trainables.items():
                sendable(f"the trainable {name}", trainable, "make it within it", lambda thing: packed_call(thing, {}))
            storage = controller._storage  # --results, or by its name; files of a study without one are there, too
            is_named = storage.experiment_dir_name not in core.made_up
            if options.results is None and is_named and storage.storage_filesystem.type_name == "local":
                options = replace(options, results=Path(storage.experiment_fs_path, "mpitune"))
            options = own_folder(options, ("ray", storage.experiment_fs_path))
            seeds = known_settings(options) | ({} if controller.is_restored else core.given_seeds)
            _, state, at, *_ = core.numpy_random.get_state()
            controller.seed, size = begun(options, seeds.get("seed"), window, made_up=int(state[at % len(state)]))
            controller.seed_of_random = seeds.get("seed_of_random", 0)
            controller.begin(choose(options.gpu, options.workers, 1)[0][0] != CPU, slots_here(options))
            about, worker = controller.described(), InWorker(_packed(controller), begin)
            tuning = RayTuning(*about, controller.seed, controller.seed_of_random, size, worker, controller)
            run_study(tuning, options)
    except (UsageError, StudyError) as error:
        if place in core.tuners:  # of the study that is there
            with written_whole(place) as file:
                file.write(core.tuners[place])
        core.refuse(error)
    finally:
        core.tuners.pop(place, None)
        core.given_seeds.clear()


def _packed(controller: Controller) -> bytes:
    return packed_call((controller.trainables, core.values, controller.stoppers), controller.arrays)


def _serially(controller: Controller, worker: InWorker) -> None:
    controller.begin(False, 1)
    objective, search = worker.begin(controller.arrays), rounds(controller, 1)
    window = next(search, None)
    with suppress(StopIteration):
        while isinstance(window, Window):
            for content in controller.news():
                objective.on_news(content)
            answers = list(objective(window.awaited))
            for answer in answers:
                key, *extras = pickle.loads(answer.messages)
                controller.extras[key] = tuple(extras)
            window = search.send([Result(**vars(answer)) for answer in answers])
