"""A trial of Optuna in a worker: the user's objective with a view of the study that is the same in any worker."""

from __future__ import annotations

import base64
import gc
import json
import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.exceptions import TrialPruned
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from optuna.trial import Trial as OptunaTrial

from mpitune.errors import own_traceback
from mpitune.optuna.records import ATTRIBUTE, plain, unpacked, unpacked_params, whole
from mpitune.optuna.records import packed as packed_trial
from mpitune.optuna.view import Studies, View, ViewedStudy, running
from mpitune.processes.process import packed, packed_error
from mpitune.trial import CHOSEN, COMPLETE, CONSTRAINTS, FAILED, PRUNED, Batch, Evaluation, Trial

ASKED = "@asked"  # the parameter of the engine's trial


class InWorker:
    """Evaluates trials. It hears of results in the order in which the study has them.

    Args:
        function: the user's objective.
        view: of the study, with what is known at the start.
        sampler, pruner: the user's.
        seed: of the study.
        names: of its values.
        collects: whether garbage is collected after each trial.
    """

    keeps_worker = True

    def __init__(
        self,
        function: Callable[[Any], Any],
        view: View,
        sampler: BaseSampler,
        pruner: BasePruner,
        seed: int,
        names: Sequence[str],
        collects: bool,
    ):
        self._function, self._view, self._names, self._collects = function, view, names, collects
        self._studies = Studies(view, sampler, pruner, seed)
        self._told: list[FrozenTrial] = []  # in the order in which the study has them
        self._known: list[FrozenTrial | None] = []  # by number
        self._take(view.trials)

    def hear(self, content: bytes) -> None:
        """Results that later trials may see."""
        self._take(pickle.loads(content))

    def _take(self, trials: Iterable[FrozenTrial]) -> None:
        for trial in trials:
            self._told.append(trial)
            self._known += [None] * (trial.number + 1 - len(self._known))
            self._known[trial.number] = trial

    def __call__(self, batch: Batch) -> Iterator[Evaluation]:
        for trial in batch:
            yield self._evaluated(trial)
            if self._collects:
                gc.collect()

    def _evaluated(self, trial: Trial) -> Evaluation:
        asked = json.loads(str(trial.params[ASKED]))
        number = asked["number"]
        study = self._study_of(asked)
        before = self._view.get_study_user_attrs(study._study_id)
        returned: Any = None
        state: TrialState | None = None
        text, raised = "", b""
        try:
            returned = self._function(OptunaTrial(study, number))
        except TrialPruned:
            state = TrialState.PRUNED
        except (Exception, KeyboardInterrupt) as error:
            state, text = TrialState.FAIL, own_traceback(error)
            raised = packed_error(error, text)
        ended = self._view.get_trial(number)
        ended.datetime_complete = datetime.now()
        said = {
            "trial": packed_trial(ended), "returned": _floats(returned), "state": state and state.name,
            "raised": text, "stopped": study.stopped, "study": plain(self._view.new_attrs(before)),
        }  # fmt: skip
        is_whole = unpacked(said["trial"]) == ended  # else it holds what JSON cannot say, and a journal has a text
        messages = b"" if is_whole and not raised else packed((number, raised, None if is_whole else ended))
        values = _values(said["returned"], self._names) if state is None else {}
        chosen = {
            "params": plain(ended.params),
            "state": PRUNED if state == TrialState.PRUNED else COMPLETE if values else FAILED,
            "error": text or (None if values or state else f"the objective returned {returned!r}"),
        }
        shown = {**values, **_steps(ended, self._names[0])}
        attrs = {**plain(ended.user_attrs), **_constraints(ended), CHOSEN: chosen, ATTRIBUTE: said}
        return Evaluation(trial.key, shown, messages=messages, user_attrs=attrs)

    def _study_of(self, asked: Mapping[str, Any]) -> ViewedStudy:
        """The study as the trial that rank 0 has asked for sees it; the trial is its last."""
        number, pickled = asked["number"], asked.get("pickled")
        self._view.show(self._known, number, self._told[asked["known"] :])
        begun = running(number, user_attrs=asked["user_attrs"], system_attrs=asked["system_attrs"])
        study = self._studies.at(str(number))
        self._view.create_new_trial(study._study_id, begun)
        content = base64.b64decode(pickled) if pickled else b""  # rank 0 has just made it: no journal is read for it
        joint = pickle.loads(content) if content else unpacked_params(asked["params"])
        study.sampler = _Proposed(study.sampler, *joint)
        return study


def _steps(trial: FrozenTrial, name: str) -> dict[str, float]:
    """Its reports, as journals have values of steps."""
    values = {f"{name}@{step}": value for step, value in trial.intermediate_values.items()}
    return {at: value for at, value in values.items() if not math.isnan(value)}


def _constraints(trial: FrozenTrial) -> dict[str, Any]:
    """What `set_constraint` of Optuna 5 was told, as a user attribute of a journal."""
    said = [plain(v) for name, v in sorted(trial.system_attrs.items()) if name.startswith("constraints:")]
    return {CONSTRAINTS: said} if said else {}


def _floats(returned: Any) -> Any:
    """What an objective returned as numbers, as Optuna takes it; None where it cannot be."""
    try:
        several = isinstance(returned, Sequence) and not isinstance(returned, str)
        return plain([float(value) for value in returned]) if several else plain(float(returned))
    except (TypeError, ValueError, OverflowError):
        return None


def _values(returned: Any, names: Sequence[str]) -> dict[str, float]:
    """What reports show."""
    several = whole(returned if isinstance(returned, list) else [returned])
    if len(several) != len(names) or any(value is None or math.isnan(value) for value in several):
        return {}
    return dict(zip(names, several, strict=True))


class _Proposed(BaseSampler):
    """The user's sampler, of which rank 0 has asked what is proposed for all parameters together."""

    def __init__(self, sampler: BaseSampler, params: Mapping[str, Any], space: Mapping[str, BaseDistribution]):
        self._sampler, self._params, self._space = sampler, dict(params), dict(space)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._params

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)
