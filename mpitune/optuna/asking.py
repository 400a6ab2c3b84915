"""Rank 0's part of a study of Optuna: it proposes in the order of numbers, and adds what comes back to the study.

What a sampler proposes jointly (Gaussian processes, CMA-ES, TPE with multivariate=True, and others) is proposed here,
where the parameters of running trials are known: workers would propose near-duplicates. What is suggested one by one is
drawn in the worker that runs the trial.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from optuna.search_space import intersection_search_space
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from optuna.trial import Trial as OptunaTrial

from mpitune.errors import UsageError
from mpitune.optuna.records import packed_params, unpacked_params
from mpitune.optuna.view import Studies, View, is_optunas, running, seed_in

SEED, WINDOW = "mpitune:seed", "mpitune:window"  # system attributes of the user's study
BEGUN = "_mpitune_begun"  # of a sampler: how many studies it has begun
OURS = "mpitune"  # of a trial that was run here: how others saw it while it ran


class Asking:
    """The user's study, and a view of it that has the trials that run.

    Args:
        study: the user's, to which each trial is added when it is told, so that a storage has whole trials only.
        seed: of the study.
        window: how many trials may be open.
    """

    def __init__(self, study: Study, seed: int, window: int):
        self._study, self._window = study, window
        self._view = view_of(study, seed)
        self._studies = Studies(self._view, study.sampler, study.pruner, seed, keeps=True)
        self._waiting: dict[int, FrozenTrial] = {}
        self._adopted: set[int] = set()  # trials that were enqueued, and run here
        self._look()
        trials = study.get_trials(deepcopy=False)
        # Results of an earlier run that its trials after them may not see yet.
        last = max((trial.number for trial in trials if trial.state.is_finished()), default=-1)
        self._hidden = {
            trial.number: numbered(trial)
            for trial in trials
            if OURS in trial.system_attrs and trial.state.is_finished() and trial.number > last + 1 - window
        }
        for number, trial in self._hidden.items():  # they were seen as they began
            joint = trial.system_attrs[OURS]
            params, space = unpacked_params(joint["params"])
            attrs = {name: value for name, value in trial.system_attrs.items() if name in joint["attrs"]}
            self._view.trials[number] = running(number, params=params, distributions=space, system_attrs=attrs)
        self.open: list[int] = []  # numbers that were asked for, in order, and not told
        self._attrs: dict[int, dict[str, Any]] = {}  # the study's, as the sampler left them when it was asked
        self.stopped = False

    def _look(self) -> list[FrozenTrial]:
        """See trials that the script has added. Returns those that have ended."""
        new = self._study.get_trials(deepcopy=False)[len(self._view.trials) :]
        self._waiting.update((trial.number, trial) for trial in new if trial.state == TrialState.WAITING)
        self._view.trials += map(numbered, new)
        return [trial for trial in self._view.trials[-len(new) :] if trial.state.is_finished()] if new else []

    @property
    def first(self) -> list[FrozenTrial]:
        """What every worker knows at its start."""
        return [trial for trial in self._view.trials if trial.state.is_finished()]

    def reveal(self, number: int) -> list[FrozenTrial]:
        """Results of an earlier run that the trial of this number may see."""
        seen = [hidden for n, hidden in sorted(self._hidden.items()) if n <= number - self._window]
        for trial in seen:
            self._view.trials[trial.number] = self._hidden.pop(trial.number)
        return seen

    def ask(self) -> tuple[int, list[FrozenTrial], dict[str, Any]]:
        """The next trial: its number, what has become known, and what its worker needs besides."""
        added = [] if self.open else self._look()  # as by a callback
        enqueued = self._waiting.pop(min(self._waiting)) if self._waiting else None
        number = len(self._view.trials) if enqueued is None else enqueued.number
        seen = [*added, *self.reveal(number)]
        if enqueued is None:
            self._view.create_new_trial(0)
        else:
            self._adopted.add(number)
            self._view.trials[number] = running(
                number, user_attrs=enqueued.user_attrs, system_attrs=enqueued.system_attrs
            )
        study = self._studies.at(f"{number}/joint")
        params, space = proposed(OptunaTrial(study, number))
        self.stopped |= study.stopped
        trial = self._view.trials[number] = copy.copy(self._view.trials[number])
        trial.params, trial.distributions = params, {name: space[name] for name in params}
        self.open.append(number)
        self._attrs[number] = attrs_of(study)
        asked = {
            "params": packed_params(params, space),
            "user_attrs": trial.user_attrs,
            "system_attrs": trial.system_attrs,
        }
        return number, seen, asked

    def tell(self, ended: FrozenTrial, values: Any, state: TrialState | None) -> FrozenTrial:
        """Take in a trial that has ended, in the order asked; the trial as the study has it from now on."""
        number = ended.number
        self.open.remove(number)
        begun = self._view.trials[number]
        complete = ended.datetime_complete
        ended.state, ended.datetime_complete = TrialState.RUNNING, None
        joint = {"params": packed_params(begun.params, begun.distributions), "attrs": sorted(begun.system_attrs)}
        ended.system_attrs = {**begun.system_attrs, **ended.system_attrs, OURS: joint}
        self._view.trials[number] = ended
        study = self._studies.at(f"{number}/after")
        try:
            with warnings.catch_warnings(action="ignore"):  # a value that is none is said by who calls this
                study.tell(number, values, state)
        finally:  # Optuna keeps a trial also where the sampler's `after_trial` raises
            self.stopped |= study.stopped
            told = self._view.trials[number]
            told.datetime_complete = complete or told.datetime_complete
            self._keep(told)
        return told

    def begun(self, number: int) -> FrozenTrial:
        """A trial as it began."""
        return copy.copy(self._view.trials[number])

    def _keep(self, told: FrozenTrial) -> None:
        """Add it to the user's study."""
        storage, existing = self._study._storage, self._study.get_trials(deepcopy=False)
        theirs = told.number < len(existing) and (
            told.number not in self._adopted or existing[told.number].state != TrialState.WAITING
        )
        if theirs or told.number > len(existing):
            raise UsageError(
                f"another process or a callback adds trial {told.number} to study {self._study.study_name!r} while "
                "others run: let one job run it, and add trials between calls of optimize (or with a window of 1)"
            )
        known = attrs_of(self._study)
        for name, value in self._attrs.pop(told.number).items():
            if known.get(name) != value:
                storage.set_study_system_attr(self._study._study_id, name, value)
        if told.number == len(existing):
            # Not by `add_trial`, which refuses values out of range: GridSampler's, for one, may be.
            storage.create_new_trial(self._study._study_id, template_trial=told)
            return
        trial_id = existing[told.number]._trial_id
        for name, value in told.params.items():
            drawn_from: BaseDistribution = told.distributions[name]
            storage.set_trial_param(trial_id, name, drawn_from.to_internal_repr(value), drawn_from)
        for step, value in told.intermediate_values.items():
            storage.set_trial_intermediate_value(trial_id, step, value)
        for name, value in told.user_attrs.items():
            storage.set_trial_user_attr(trial_id, name, value)
        for name, value in told.system_attrs.items():
            storage.set_trial_system_attr(trial_id, name, value)
        storage.set_trial_state_values(trial_id, TrialState.RUNNING)
        storage.set_trial_state_values(trial_id, told.state, told.values)


def proposed(trial: OptunaTrial) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
    """What the sampler proposes for parameters that are known before the objective asks for them."""
    sampler = trial.study.sampler
    if getattr(sampler, "_initial_popsize", 0) is None:  # CmaEsSampler before Optuna 4.4 remembers that of its begin
        key, known = sampler._attr_keys.popsize(), trial.study.get_trials(deepcopy=False)
        sampler._initial_popsize = next((one.system_attrs[key] for one in known if key in one.system_attrs), None)
    params = dict(trial.relative_params)
    space = dict(trial.relative_search_space or {})
    lies = isinstance(sampler, TPESampler) and getattr(sampler, "_constant_liar", False) and not space
    if lies or not is_optunas(sampler):
        # It looks at the parameters of running trials, or keeps a state: in the order of numbers.
        for name, drawn_from in intersection_search_space(trial.study.get_trials(deepcopy=False)).items():
            if name not in params and not drawn_from.single():
                frozen = trial.storage.get_trial(trial._trial_id)
                params[name] = sampler.sample_independent(trial.study, frozen, name, drawn_from)
                space[name] = drawn_from
    return params, space


def numbered(trial: FrozenTrial) -> FrozenTrial:
    """A trial of the user's study, whose id is its number."""
    found = copy.copy(trial)
    found._trial_id = trial.number
    return found


def attrs_of(study: Study) -> dict[str, Any]:
    """The study's system attributes, which Optuna 5 does not offer."""
    return study._storage.get_study_system_attrs(study._study_id)


def view_of(study: Study, seed: int) -> View:
    """A view of a study, without its trials. Hyperband draws by its name: one that Optuna has made up is replaced."""
    name = f"mpitune-{seed}" if study.study_name.startswith("no-name-") else study.study_name
    return View(name, study.directions, study.user_attrs, attrs_of(study), study._study_id)


def seed_of_study(study: Study, otherwise: int) -> int:
    """The seed of a study: the one it has, that of its sampler, or this one, which it then has.

    A sampler that has begun several studies gives each another one.
    """
    known = attrs_of(study).get(SEED)
    if known is None:
        begun = vars(study.sampler).get(BEGUN, 0)
        setattr(study.sampler, BEGUN, begun + 1)
        of_sampler = seed_in(study.sampler)
        known = otherwise if of_sampler is None else of_sampler + begun
        study._storage.set_study_system_attr(study._study_id, SEED, known)
    return int(known)
