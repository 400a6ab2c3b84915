"""A study of Optuna as one trial sees it: with the results of the trials that it may know, and others without values.

The random numbers of a trial's sampler are made of the study's seed and the trial's number. So what is proposed and
pruned is a pure function of the study's past, and any process that has this past can answer for it: rank 0, which asks
for what a sampler proposes jointly in the order of numbers, and who runs the trial, who asks for the rest.
"""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner, HyperbandPruner
from optuna.samplers import BaseSampler, QMCSampler, TPESampler
from optuna.search_space import intersection_search_space
from optuna.storages import BaseStorage, InMemoryStorage
from optuna.storages._in_memory import _StudyInfo
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

DRAWN = 2**32  # a seed above is one that Optuna has drawn
RANDOM = np.random.RandomState, np.random.Generator, random.Random
READ_ONLY = "an objective can only read its study: add trials in the script"
Joint = tuple[dict[str, Any], dict[str, BaseDistribution]]  # parameters that were proposed, and from what


def running(number: int, **more: Any) -> FrozenTrial:
    """A trial of which nothing is known but its number, or these things. Its id is its number."""
    nothing: dict[str, Any] = {
        "state": TrialState.RUNNING, "value": None, "datetime_start": datetime.now(), "datetime_complete": None,
        "params": {}, "distributions": {}, "user_attrs": {}, "system_attrs": {}, "intermediate_values": {},
    }  # fmt: skip
    return FrozenTrial(number=number, trial_id=number, **{**nothing, **more})


def name_of(seed: int) -> str:
    """The name of a study that has none: Hyperband draws its brackets by it."""
    return f"mpitune-{seed}"


class View(InMemoryStorage):
    """Optuna's storage in memory with one study, whose trials a caller sets: the number of one is its id.

    For each thing to do there is a sampler and a pruner that nothing was done with before.

    Args:
        name, directions, user_attrs, system_attrs, study_id: of the study.
        sampler, pruner: the user's.
        seed: of the study.
        keeps: whether those that are not Optuna's are used themselves, as they may have a state.
    """

    get_best_trial = BaseStorage.get_best_trial  # of those that are set, without a note of the best

    def __init__(
        self,
        name: str,
        directions: Sequence[StudyDirection],
        sampler: BaseSampler,
        pruner: BasePruner,
        seed: int,
        keeps: bool = False,
        user_attrs: Mapping[str, Any] | None = None,
        system_attrs: Mapping[str, Any] | None = None,
        study_id: int = 0,
    ):
        super().__init__()
        self.study_id, self._study = study_id, _StudyInfo(name, list(directions))  # samplers remember the id
        self._studies, self._study_name_to_id = {study_id: self._study}, {name: study_id}
        self.trials, self._prev_waiting_trial_number = self._study.trials, {study_id: 0}
        self._study.user_attrs, self._study.system_attrs = dict(user_attrs or {}), dict(system_attrs or {})
        self._parts = [part if keeps and not is_optunas(part) else copy.deepcopy(part) for part in (sampler, pruner)]
        # All copies share these, which are slow to make: one thing at a time draws from them, after it has seeded them.
        self._random = [source for source in _sources(self._parts) if isinstance(source, RANDOM)]
        self._seed, self._keeps, self.stopped = seed, keeps, False
        self.several = True  # whether several trials may run at a time

    def show(self, seen: Iterable[FrozenTrial], n: int, user_attrs: Mapping[str, Any]) -> None:
        """Have n trials, those that are seen and running ones in all other places, and the study's attributes."""
        self._study.user_attrs = dict(user_attrs)
        by_number = {trial.number: trial for trial in seen}
        self.trials[:] = []
        self.add(by_number.get(number) or running(number) for number in range(n))

    def add(self, trials: Iterable[FrozenTrial]) -> None:
        """Have these trials after all others."""
        for trial in trials:
            self._trial_id_to_study_id_and_number[len(self.trials)] = self.study_id, len(self.trials)
            self.trials.append(trial)

    def begin(self, number: int, **more: Any) -> Joint:
        """Begin a trial, a new one or one that has waited, of which these things are known.

        What the sampler proposes for parameters that are known before they are asked for, in the order of numbers.
        """
        self.add([running(number)] if number == len(self.trials) else [])
        self.trials[number] = running(number, **more)
        return self._proposed(number)

    def new_attrs(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """The study's user attributes that were set since it had these."""
        after = self._study.user_attrs
        return {name: value for name, value in after.items() if name not in before or before[name] is not value}

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        before = (trial.distributions[param_name] for trial in self.trials if param_name in trial.distributions)
        self._study.param_distribution = {param_name: next(before, distribution)}  # which Optuna compares
        super().set_trial_param(trial_id, param_name, param_value_internal, distribution)

    def _update_cache(self, trial_id: int, study_id: int) -> None:
        pass

    def _at(self, what: str) -> ViewedStudy:
        """The study, whose sampler's random numbers are those of this name."""
        sampler, pruner = (
            part if self._keeps and not is_optunas(part) else copy.deepcopy(part, {id(s): s for s in self._random})
            for part in self._parts
        )
        reseed(sampler, f"{self._seed}/{what}")
        study = ViewedStudy(self._study.name, self, sampler, pruner)
        if isinstance(pruner, HyperbandPruner) and not pruner._pruners:
            pruner._try_initialization(study)  # so that the sampler sees the trials of the bracket
        study._thread_local.in_optimize_loop = True  # its own `optimize` raises, as in Optuna
        return study

    def _proposed(self, number: int) -> Joint:
        study = self._at(f"{number}/joint")
        if getattr(study.sampler, "_initial_popsize", 0) is None:  # CmaEsSampler before Optuna 4.4: that of its begin
            key = study.sampler._attr_keys.popsize()
            known = (one.system_attrs[key] for one in study.get_trials(deepcopy=False) if key in one.system_attrs)
            study.sampler._initial_popsize = next(known, None)
        trial = Trial(study, number)
        params = dict(trial.relative_params)
        space = dict(trial.relative_search_space or {})
        sampler = getattr(study.sampler, "_base_sampler", study.sampler)
        lies = isinstance(sampler, TPESampler) and sampler._constant_liar and not params and self.several
        if lies or not is_optunas(sampler):  # it looks at the parameters of running trials, or keeps a state
            for name, drawn_from in intersection_search_space(study.get_trials(deepcopy=False)).items():
                trial._suggest(name, drawn_from)
        self.stopped |= study._stop_flag
        begun = self.get_trial(number)
        params, space = {**params, **begun.params}, {**space, **begun.distributions}
        return params, {name: space[name] for name in params}

    def trial(self, number: int, joint: Joint) -> Trial:
        """The trial for who runs it: for these parameters the sampler is not asked again."""
        study = self._at(str(number))
        params, space = joint
        proposed: Any = SimpleNamespace(
            before_trial=lambda *told: None,
            infer_relative_search_space=lambda *told: space,
            sample_relative=lambda *told: params,
            sample_independent=study.sampler.sample_independent,
        )
        study.sampler = proposed
        return Trial(study, number)

    def tell(self, number: int, values: Any, state: TrialState | None) -> None:
        """End a trial."""
        study = self._at(f"{number}/after")
        try:
            study.tell(number, values, state)
        finally:  # Optuna keeps a trial also where the sampler's `after_trial` raises
            self.stopped |= study._stop_flag


class ViewedStudy(Study):
    """A study of a view."""

    def enqueue_trial(self, *args: Any, **more: Any) -> None:
        raise RuntimeError(READ_ONLY)

    add_trial = add_trials = ask = enqueue_trial


def is_optunas(part: BaseSampler | BasePruner) -> bool:
    """Whether a sampler or pruner is one of Optuna's, whose state is in the study alone."""
    return type(part).__module__.startswith("optuna.")


def reseed(sampler: Any, name: str) -> None:
    """Seed each source of random numbers of a sampler by this name, `SEED/WHAT`."""
    for number, source in enumerate(_sources(sampler)):
        words = np.frombuffer(hashlib.sha256(f"{name}/{number}".encode()).digest(), np.uint32)
        if isinstance(source, QMCSampler):  # whose scrambling has a seed, which it may have drawn itself
            drawn = hashlib.sha256(name.partition("/")[0].encode()).digest()[:4]
            source._seed = source._seed if source._seed < DRAWN else int.from_bytes(drawn, "little")
        elif isinstance(source, np.random.Generator):
            state = type(source.bit_generator)(np.random.SeedSequence(words.tolist())).state
            source.bit_generator.state = state
        elif isinstance(source, np.random.RandomState):
            source.seed(words)
        else:
            source.seed(words.tobytes())


def seed_in(sampler: BaseSampler) -> int | None:
    """A seed made of the state of its random numbers; None where they begin anew in each process."""
    sources = [s for s in _sources(copy.deepcopy(sampler), unseeded=False) if not isinstance(s, QMCSampler)]
    digest = hashlib.sha256()
    for source in sources:
        state = source.bit_generator.state if isinstance(source, np.random.Generator) else (
            source.getstate() if isinstance(source, random.Random) else source.get_state()
        )  # fmt: skip
        digest.update(repr(state).encode())
    return int.from_bytes(digest.digest()[:4], "little") if sources else None


def _sources(sampler: Any, unseeded: bool = True) -> list[Any]:
    """The sources of random numbers within a sampler, in a fixed order; those without a seed only if asked."""
    seen: set[int] = set()

    def walk(thing: Any) -> Iterator[Any]:
        if id(thing) in seen:
            return
        seen.add(id(thing))
        if isinstance(thing, RANDOM):
            yield thing
        elif type(thing).__name__ == "LazyRandomState":
            if unseeded or thing._rng is not None:
                yield thing.rng
        elif isinstance(thing, dict | list | tuple):
            for value in thing.values() if isinstance(thing, dict) else thing:
                yield from walk(value)
        elif hasattr(thing, "__dict__") and not isinstance(thing, type | Study | BaseStorage) and not callable(thing):
            yield from [thing] if isinstance(thing, QMCSampler) else []
            yield from walk(vars(thing))

    return list(walk(sampler))
