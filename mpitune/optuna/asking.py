"""Rank 0's part of a study of Optuna: it proposes in the order of numbers, and adds what comes back to the study.

What a sampler proposes jointly (Gaussian processes, CMA-ES, TPE with multivariate=True, and others) is proposed here,
where the parameters of running trials are known: workers would propose near-duplicates. What is suggested one by one is
drawn in the worker that runs the trial.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable, Mapping
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.logging import get_logger
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from mpitune.errors import UsageError
from mpitune.identity import without_address
from mpitune.optimize.plain import is_json, plain, whole
from mpitune.optimize.strategies.view import View, is_optunas, name_of, running, seed_in
from mpitune.optuna.records import JOINT, packed_params, says_all, unpacked_params
from mpitune.processes.process import can_be_sent, packed
from mpitune.trial import Segment, Trial

log = get_logger("optuna.study")  # whose verbosity the user sets
SEED, WINDOW = "mpitune:seed", "mpitune:window"  # system attributes of the user's study
BEGUN = "_mpitune_begun"  # of a sampler: how many studies it has begun


class Asking:
    """The user's study, and a view of it that has the trials that run.

    Args:
        study: the user's, to which each trial is added when it is told, so that a storage has whole trials only.
        seed: of the study.
        window: how many trials may be open.
    """

    def __init__(self, study: Study, seed: int, window: int):
        self._study, self._seed, self._window = study, seed, window
        self._view = view_of(study, seed, keeps=True)
        self._view.several, self._trials = window > 1, self._view.trials
        self._waiting: list[int] = []  # trials that were enqueued
        self._enqueued: set[int] = set()  # those of them that run here
        self._news: list[FrozenTrial] = []  # what workers have not been told
        self._new_attrs: list[tuple[int, dict[str, Any]]] = []  # nor that: after so many results the study got these
        self._look()
        ended = [trial for trial in self._trials if trial.state.is_finished()]
        proposed_here = [trial for trial in ended if JOINT in trial.system_attrs]
        if not is_optunas(study.sampler) and BEGUN not in vars(study.sampler) and proposed_here:
            setattr(study.sampler, BEGUN, 0)
            log.warning(
                "%s is not of Optuna: what it keeps begins anew, as an earlier process ran trials of %s",
                type(study.sampler).__name__, study.study_name,
            )  # fmt: skip
        # Results of an earlier run that its trials after them may not see yet.
        self._hidden = {trial.number: trial for trial in proposed_here if trial.number > ended[-1].number + 1 - window}
        for number, trial in self._hidden.items():  # they were seen as they began
            joint = trial.system_attrs[JOINT]
            params, space = unpacked_params(whole(joint["params"]))
            for name in [name for name in space if hasattr(space[name], "choices") and name in trial.params]:
                params[name], space[name] = trial.params[name], trial.distributions[name]  # which may be no texts
            attrs = {name: value for name, value in trial.system_attrs.items() if name in joint["attrs"]}
            self._trials[number] = running(number, params=params, distributions=space, system_attrs=attrs)
        self.open: list[int] = []  # numbers that were asked for, in order, and not told
        self._attrs: dict[int, dict[str, Any]] = {}  # the study's own ones, as the sampler left them when asked
        self.raised: dict[int, Exception] = {}  # by the sampler as it was asked for an open trial, which fails of it

    def view_of_workers(self) -> View:
        """What every worker knows at its start."""
        view = view_of(self._study, self._seed)
        view.add(trial for trial in self._trials if trial.state.is_finished())
        self._n_known, self._news = len(view.trials), []
        return view

    def _look(self) -> None:
        """See trials that the script has added."""
        new = [copy.copy(trial) for trial in self._study.get_trials(deepcopy=False)[len(self._trials) :]]
        for trial in new:
            trial._trial_id = trial.number
        self._view.add(new)
        self._waiting += [trial.number for trial in new if trial.state == TrialState.WAITING]
        self._news += [trial for trial in new if trial.state.is_finished()]

    def _look_at_attrs(self) -> None:
        """See user attributes that the study has got since, as by a callback."""
        view, known = self._view, self._view.get_study_user_attrs(self._view.study_id)
        now, new = self._study._storage.get_study_user_attrs(self._study._study_id), {}
        for name, value in now.items():
            if (name not in known or not _is_same(known[name], value)) and can_be_sent(value):
                new[name] = value
            view.set_study_user_attr(view.study_id, name, value)
        if new:
            self._new_attrs.append((self._n_known + len(self._news), new))

    def news(self) -> list[bytes]:
        """Results and attributes of the study that workers hear of before later trials."""
        news, self._news, attrs, self._new_attrs = self._news, [], self._new_attrs, []
        self._n_known += len(news)
        return [packed((news, attrs))] if news or attrs else []

    @property
    def stopped(self) -> bool:
        """Whether the sampler has ended the study."""
        return self._view.stopped

    def ask(self) -> Trial:
        """The next trial for a worker."""
        if not self.open:
            self._look()  # as by a callback
        self._look_at_attrs()
        number = self._waiting[0] if self._waiting else len(self._trials)
        for seen in [seen for seen in sorted(self._hidden) if seen <= number - self._window]:
            self._trials[seen] = self._hidden.pop(seen)
            self._news.append(self._trials[seen])
        attrs: dict[str, Any] = {}
        if self._waiting:
            self._enqueued.add(self._waiting.pop(0))
            attrs = {"user_attrs": self._trials[number].user_attrs, "system_attrs": self._trials[number].system_attrs}
        try:
            params, space = self._view.begin(number, **attrs)
        except Exception as error:  # as in Optuna 5, where the objective meets it
            params, space, self.raised[number] = {}, {}, error
        trial = self._trials[number]
        trial.params, trial.distributions = params, space
        self.open.append(number)
        self._attrs[number] = dict(self._view.get_study_system_attrs(self._view.study_id))
        joint = {"params": packed_params(params, space), "attrs": sorted(trial.system_attrs)}
        seen = {"user_attrs": trial.user_attrs, "system_attrs": {**trial.system_attrs, JOINT: joint}}
        proposal = plain({"number": number, "known": self._n_known + len(self._news), **seen})
        trial.system_attrs = {**trial.system_attrs, JOINT: proposal["system_attrs"][JOINT]}
        if number in self.raised:
            proposal["raised"] = without_address(repr(self.raised[number]))
        if not (is_json(seen) and all(map(says_all, space.values()))):
            content = packed((params, space, trial.user_attrs, trial.system_attrs))
            proposal["pickled"] = base64.b64encode(content).decode()
        return Trial(f"t{number:06}", {}, Segment(number, for_objective=proposal))

    def tell(self, ended: FrozenTrial | None, values: Any, state: TrialState) -> FrozenTrial:
        """Take in what became of the next trial in the order asked; the trial as the study has it from now on.

        ended: as its worker has left it; None where that has died.
        """
        number = self.open.pop(0)
        ended = ended or copy.copy(self._trials[number])
        # CMA-ES unpickles what it has kept: from here, never from a journal.
        kept = {name: value for name, value in ended.system_attrs.items() if ":optimizer" not in name}
        ended.system_attrs = kept | self._trials[number].system_attrs
        complete, ended.datetime_complete = ended.datetime_complete, None
        self._trials[number] = ended
        try:
            self._view.tell(number, values, state)
        finally:  # also where the sampler's `after_trial` raises
            told = self._trials[number]
            told.datetime_complete = complete or told.datetime_complete
            self._keep(told)
        self._news.append(told)
        return told

    def _keep(self, told: FrozenTrial) -> None:
        """Add it to the user's study."""
        storage, existing = self._study._storage, self._study.get_trials(deepcopy=False)
        of_script = told.number < len(existing) and (
            told.number not in self._enqueued or existing[told.number].state != TrialState.WAITING
        )
        if of_script or told.number > len(existing):
            raise UsageError(
                f"another process or a callback adds trial {told.number} to study {self._study.study_name!r} while "
                "others run: let one job run it, and add trials between calls of optimize (or with a window of 1)"
            )
        known, ids = attrs_of(self._study), lambda: {trial.number: trial._trial_id for trial in existing}
        for name, value in with_parents(self._attrs.pop(told.number), ids).items():
            if name not in known or not _is_same(known[name], value):
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


def _is_same(one: Any, other: Any) -> bool:
    """Whether two attributes are the same, of which nobody knows what their == says."""
    return one is other or (can_be_sent(one) and can_be_sent(other) and packed(one) == packed(other))


def attrs_of(study: Study) -> dict[str, Any]:
    """The study's system attributes, which Optuna 5 does not offer."""
    return study._storage.get_study_system_attrs(study._study_id)


def view_of(study: Study, seed: int, keeps: bool = False) -> View:
    """A view of a study, without its trials. Hyperband draws by its name: one that Optuna has made up is replaced."""
    name = name_of(seed) if study.study_name.startswith("no-name-") else study.study_name
    attrs = with_parents(attrs_of(study), lambda: {t._trial_id: t.number for t in study.get_trials(deepcopy=False)})
    return View(
        name, study.directions, study.sampler, study.pruner, seed, keeps, study.user_attrs, attrs, study._study_id,
    )  # fmt: skip


def with_parents(attrs: Mapping[str, Any], of: Callable[[], Mapping[int, int]]) -> dict[str, Any]:
    """A study's attributes, in which NSGA-II and NSGA-III keep parents of generations by the ids of a storage.

    A view has numbers for ids. Parents that are not known are left out: Optuna chooses them again.
    """
    parents = {name: value for name, value in attrs.items() if ":parent:" in name}
    if not parents:
        return dict(attrs)
    new = of()
    known = {name: [new[old] for old in value] for name, value in parents.items() if new.keys() >= {*value}}
    return {name: value for name, value in attrs.items() if name not in parents} | known


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
