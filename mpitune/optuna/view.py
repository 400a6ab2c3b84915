"""The study as one trial sees it: results of the trials that it may know, and the others without values.

Trial n knows the results of all trials up to n - window, and no others, even if more have ended. The random numbers
of its sampler are made of the study's seed and n. So `suggest_*` and `should_prune` are pure functions of the study's
past, and any process that has this past can answer them.
"""

from __future__ import annotations

import copy
import hashlib
import pickle
import random
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import cloudpickle
import numpy as np
from optuna.distributions import BaseDistribution, check_distribution_compatibility
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, QMCSampler
from optuna.storages import BaseStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

DRAWN = 2**32  # a seed above is one that Optuna has drawn


def running(number: int, **more: Any) -> FrozenTrial:
    """A trial of which nothing is known but its number, or these things. Its id is its number."""
    nothing: dict[str, Any] = {
        "state": TrialState.RUNNING, "value": None, "datetime_start": datetime.now(), "datetime_complete": None,
        "params": {}, "distributions": {}, "user_attrs": {}, "system_attrs": {}, "intermediate_values": {},
    }  # fmt: skip
    return FrozenTrial(number=number, trial_id=number, **{**nothing, **more})


class View(BaseStorage):
    """A storage of one study in memory, whose trials a caller sets. The number of a trial is its id and its place."""

    def __init__(
        self,
        name: str,
        directions: Sequence[StudyDirection],
        user_attrs: Mapping[str, Any],
        system_attrs: Mapping[str, Any],
        study_id: int,
    ):
        self._name, self._directions, self._id = name, list(directions), study_id  # samplers remember the id
        self._user_attrs, self._system_attrs = dict(user_attrs), dict(system_attrs)
        self.trials: list[FrozenTrial] = []

    def show(self, known: Sequence[FrozenTrial | None], n: int, hidden: Iterable[FrozenTrial]) -> None:
        """Have n trials: those known by number but for the hidden ones, and running ones in all other places."""
        trials = list(known[:n]) + [None] * (n - len(known))
        for trial in hidden:
            if trial.number < n:
                trials[trial.number] = None
        self.trials = [running(number) if trial is None else trial for number, trial in enumerate(trials)]

    def new_attrs(self, before: dict[str, Any]) -> dict[str, Any]:
        """The study's user attributes that were set since it had these, which it has again."""
        after, self._user_attrs = self._user_attrs, before
        return {name: value for name, value in after.items() if name not in before or before[name] is not value}

    # -- as Optuna asks

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        raise NotImplementedError("a view has one study")

    def delete_study(self, study_id: int) -> None:
        raise NotImplementedError("a view has one study")

    def get_study_id_from_name(self, study_name: str) -> int:
        return self._id

    def get_study_name_from_id(self, study_id: int) -> str:
        return self._name

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        return self._directions

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        return self._user_attrs

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return self._system_attrs

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        self._user_attrs = {**self._user_attrs, key: value}

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        self._system_attrs = {**self._system_attrs, key: value}

    def get_all_studies(self) -> list[Any]:
        return []

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        trial = copy.copy(template_trial) if template_trial is not None else running(0)
        trial.number = trial._trial_id = len(self.trials)
        self.trials.append(trial)
        return trial.number

    def get_trial_id_from_study_id_trial_number(self, study_id: int, trial_number: int) -> int:
        return self.get_trial(trial_number).number

    def get_trial(self, trial_id: int) -> FrozenTrial:
        if not 0 <= trial_id < len(self.trials):
            raise KeyError(f"there is no trial {trial_id}")
        return self.trials[trial_id]

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        trials = [trial for trial in self.trials if states is None or trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials

    def _changed(self, trial_id: int) -> FrozenTrial:
        """A copy of a trial in its place, for lists that were handed out have the old one."""
        trial = self.get_trial(trial_id)
        self.check_trial_is_updatable(trial_id, trial.state)
        self.trials[trial_id] = trial = copy.copy(trial)
        return trial

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        for other in self.trials:
            if param_name in other.distributions:
                check_distribution_compatibility(other.distributions[param_name], distribution)
                break
        trial = self._changed(trial_id)
        trial.params = {**trial.params, param_name: distribution.to_external_repr(param_value_internal)}
        trial.distributions = {**trial.distributions, param_name: distribution}

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        trial = self._changed(trial_id)
        trial.state = state
        if values is not None:
            trial.values = list(values)
        if state.is_finished() and trial.datetime_complete is None:
            trial.datetime_complete = datetime.now()
        return True

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        trial = self._changed(trial_id)
        trial.intermediate_values = {**trial.intermediate_values, step: intermediate_value}

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        trial = self._changed(trial_id)
        trial.user_attrs = {**trial.user_attrs, key: value}

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        trial = self._changed(trial_id)
        trial.system_attrs = {**trial.system_attrs, key: value}


READ_ONLY = "an objective can only read its study: add trials in the script"


class ViewedStudy(Study):
    """A study of a view, which may be stopped at any moment."""

    stopped = False

    def enqueue_trial(self, *given: Any, **more: Any) -> None:
        raise RuntimeError(READ_ONLY)

    add_trial = add_trials = enqueue_trial

    def stop(self) -> None:
        self.stopped = True


class Studies:
    """The studies of a view, one for each thing to do, with samplers and pruners that nothing was done with before.

    keeps: whether a sampler of the user's own itself does all, as it may have a state.
    """

    def __init__(self, view: View, sampler: BaseSampler, pruner: BasePruner, seed: int, keeps: bool = False):
        self._view, self._seed, self._keeps = view, seed, keeps
        # Optuna's are unpickled, which is quicker than a copy. A class of the script would be set anew by that.
        both = sampler, pruner
        self._own = [None if is_optunas(thing) else thing for thing in both]
        self._packed = cloudpickle.dumps([thing if is_optunas(thing) else None for thing in both])

    def at(self, what: str) -> ViewedStudy:
        """The study, whose sampler's random numbers are those of this name."""
        own = self._own if self._keeps else copy.deepcopy(self._own)
        sampler, pruner = (
            theirs if mine is None else mine for mine, theirs in zip(own, pickle.loads(self._packed), strict=True)
        )
        reseed(sampler, f"{self._seed}/{what}")
        study = ViewedStudy(self._view.get_study_name_from_id(0), self._view, sampler, pruner)
        study._thread_local.in_optimize_loop = True  # its own `optimize` raises, as in Optuna
        return study


def is_optunas(thing: BaseSampler | BasePruner) -> bool:
    """Whether a sampler or a pruner is one of Optuna's, whose state is in the study alone."""
    return type(thing).__module__.startswith("optuna.")


def reseed(sampler: BaseSampler, name: str) -> None:
    """Seed each source of random numbers of a sampler by this name."""
    for number, source in enumerate(_sources(sampler)):
        words = np.frombuffer(hashlib.sha256(f"{name}/{number}".encode()).digest(), np.uint32)
        if isinstance(source, np.random.Generator):
            state = type(source.bit_generator)(np.random.SeedSequence(words.tolist())).state
            source.bit_generator.state = state
        elif isinstance(source, np.random.RandomState):
            source.seed(words)
        else:
            source.seed(words.tobytes())
    if isinstance(sampler, QMCSampler) and sampler._seed >= DRAWN:  # of its scrambling, which it has drawn itself
        sampler._seed = int.from_bytes(hashlib.sha256(name.partition("/")[0].encode()).digest()[:4], "little")


def seed_in(sampler: BaseSampler) -> int | None:
    """A seed made of the state of its random numbers; None where they begin anew in each process."""
    sources = _sources(copy.deepcopy(sampler), unseeded=False)
    digest = hashlib.sha256()
    for source in sources:
        state = source.bit_generator.state if isinstance(source, np.random.Generator) else (
            source.getstate() if isinstance(source, random.Random) else source.get_state()
        )  # fmt: skip
        digest.update(repr(state).encode())
    return int.from_bytes(digest.digest()[:4], "little") if sources else None


def _sources(sampler: BaseSampler, unseeded: bool = True) -> list[Any]:
    """The sources of random numbers within a sampler, in a fixed order; those without a seed only if asked."""
    found: list[Any] = []
    seen: set[int] = set()

    def walk(thing: Any) -> None:
        if id(thing) in seen:
            return
        seen.add(id(thing))
        if isinstance(thing, np.random.RandomState | np.random.Generator | random.Random):
            found.append(thing)
        elif type(thing).__name__ == "LazyRandomState":
            if unseeded or thing._rng is not None:
                found.append(thing.rng)
        elif isinstance(thing, dict):
            for value in thing.values():
                walk(value)
        elif isinstance(thing, list | tuple):
            for value in thing:
                walk(value)
        elif hasattr(thing, "__dict__") and not isinstance(thing, type | Study | BaseStorage) and not callable(thing):
            walk(vars(thing))

    walk(sampler)
    return found
