"""A trial of Optuna in a worker: the user's objective with a view of the study that is the same in any worker."""

from __future__ import annotations

import base64
import gc
import json
import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from optuna.exceptions import TrialPruned
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState
from optuna.trial import Trial as OptunaTrial

from mpitune.errors import own_traceback
from mpitune.optimize.steps import TellSteps
from mpitune.optimize.strategies.from_optuna import constraints_func_of, finite
from mpitune.optimize.strategies.view import Studies, View
from mpitune.optuna.records import ATTRIBUTE, plain, unpacked, unpacked_params, whole
from mpitune.optuna.records import packed as packed_trial
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
        tell: tells rank 0 the steps of a running trial, where trackers follow.
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
        tell: Callable[[bytes], None] | None = None,
    ):
        self._tell = tell
        self._function, self._view, self._names, self._collects = function, view, names, collects
        self._studies = Studies(view, sampler, pruner, seed)
        self._constraints = constraints_func_of(sampler)
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
        before = dict(self._view.get_study_user_attrs(self._view.study_id))
        of_optuna = self._begun(asked)
        tell = None if self._tell is None else TellSteps(self._tell, trial.key)
        self._view.reported = lambda of: tell and tell.is_due and tell(_steps(of, self._names[0]))
        returned: Any = None
        state: TrialState | None = None
        text, raised = "", b""
        try:
            returned = self._function(of_optuna)
        except TrialPruned:
            state = TrialState.PRUNED
        except (Exception, KeyboardInterrupt) as error:
            state, text = TrialState.FAIL, own_traceback(error)
            raised = packed_error(error, text)
        ended = self._view.get_trial(asked["number"])
        ended.datetime_complete = datetime.now()
        said = {
            "trial": packed_trial(ended), "returned": _floats(returned), "state": state and state.name,
            "raised": text, "stopped": of_optuna.study.stopped, "study": plain(self._view.new_attrs(before)),
        }  # fmt: skip
        is_whole = unpacked(said["trial"]) == ended  # else it holds what JSON cannot say, and a journal has a text
        messages = b"" if is_whole and not raised else packed((ended.number, raised, None if is_whole else ended))
        values = _values(said["returned"], self._names) if state is None else {}
        chosen = {
            "params": plain(ended.params),
            "state": PRUNED if state == TrialState.PRUNED else COMPLETE if values else FAILED,
            "error": text or (None if values or state else f"the objective returned {returned!r}"),
        }
        steps = _steps(ended, self._names[0]).items()
        shown = {**values, **{f"{name}@{n}": value for n, each in steps for name, value in each.items()}}
        constraints = _constraints(ended, self._constraints) if values else {}
        attrs = {**plain(ended.user_attrs), **constraints, CHOSEN: chosen, ATTRIBUTE: said}
        return Evaluation(trial.key, shown, messages=messages, user_attrs=attrs)

    def _begun(self, asked: Mapping[str, Any]) -> OptunaTrial:
        """The trial that rank 0 has asked for, the last of the study as it sees it."""
        number, pickled = asked["number"], asked.get("pickled")
        self._view.show(self._known, number, self._told[asked["known"] :])
        self._view.begin(user_attrs=asked["user_attrs"], system_attrs=asked["system_attrs"])
        content = base64.b64decode(pickled) if pickled else b""  # rank 0 has just made it: no journal is read for it
        return self._studies.trial(number, pickle.loads(content) if content else unpacked_params(asked["params"]))


def _steps(trial: FrozenTrial, name: str) -> dict[int, dict[str, float]]:
    """Its reports, as trials of a search have them."""
    return {step: {name: value} for step, value in trial.intermediate_values.items() if not math.isnan(value)}


def _constraints(trial: FrozenTrial, function: Any) -> dict[str, Any]:
    """What `set_constraint` of Optuna 5 was told, or the sampler's function says, as a user attribute of a journal."""
    said = [value for name, value in sorted(trial.system_attrs.items()) if name.startswith("constraints:")]
    with suppress(Exception):  # which rank 0 raises when the trial is told
        said = said or list(function(trial) if function else ())
    return {CONSTRAINTS: finite(said)} if said else {}


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
