"""A trial of Optuna in a worker: the user's objective with a view of the study that is the same in any worker."""

from __future__ import annotations

import base64
import gc
import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from optuna.exceptions import TrialPruned
from optuna.logging import set_verbosity
from optuna.study import Study
from optuna.study._tell import _check_values_are_feasible
from optuna.trial import FrozenTrial, TrialState
from optuna.trial import Trial as OptunaTrial

from mpitune.errors import own_traceback
from mpitune.experiment import Data
from mpitune.optimize.plain import is_json, plain, whole
from mpitune.optimize.strategies.from_optuna import finite
from mpitune.optimize.strategies.view import View, ViewedStudy, running
from mpitune.optimize.values import FolderFault
from mpitune.optuna.records import JOINT, kept_of, says_all, unpacked_params
from mpitune.processes.pickles import read_call
from mpitune.processes.process import as_sent, packed, packed_error
from mpitune.trial import FAILED, PRUNED, Batch, Ending, Evaluation, Trial


def study_here() -> Study:
    """The study of the trial that runs here: what the objective has in place of its own."""
    return _study


_study = Study.__new__(ViewedStudy)


@dataclass
class InWorker:
    """Evaluates trials. It hears of results in the order in which the study has them."""

    packed: bytes  # the user's objective, without its large arrays, and with `study_here` for its study
    view: View  # of the study, with what is known at the start
    names: Sequence[str]  # of its values
    constraints: Callable[[FrozenTrial], Sequence[float]] | None  # of the sampler
    collects: bool  # whether garbage is collected after each trial
    verbosity: int  # of Optuna's log

    keeps_worker = True

    def begin(self, data: Data) -> InWorker:
        """In the worker, which has the arrays of the objective. `_told` is in the order in which the study has it."""
        global _study
        set_verbosity(self.verbosity)
        _study = self._study = Study.__new__(ViewedStudy)
        self._function = read_call(self.packed, data)
        self._told = [*self.view.trials]
        self._attrs = [(0, dict(self.view.get_study_user_attrs(self.view.study_id)))]
        return self

    def on_news(self, content: bytes) -> None:
        """Results and attributes of the study that later trials may see."""
        told, attrs = pickle.loads(content)
        self._told += told
        self._attrs += attrs

    def __call__(self, batch: Batch) -> Iterator[Evaluation]:
        for trial in batch:
            yield self._evaluated(trial)
            if self.collects:
                gc.collect()

    def _evaluated(self, trial: Trial) -> Evaluation:
        proposal = trial.segment.for_objective
        of_optuna = self._begun(proposal)
        before = dict(self.view.get_study_user_attrs(self.view.study_id))  # Optuna 4 gives its own
        values: list[float] | None = None
        state, cause, raised = TrialState.FAIL, "", b""
        try:
            if "raised" in proposal:
                raise RuntimeError(f"the sampler raised {proposal['raised']}")
            returned = self._function(of_optuna)
            several = returned if isinstance(returned, Sequence) else [returned]
            if refused := _check_values_are_feasible(of_optuna.study, several):
                cause = f"the objective returned {returned!r}: {refused}"
            else:
                values, state = [float(value) for value in several], TrialState.COMPLETE
        except TrialPruned:
            state = TrialState.PRUNED
        except FolderFault as fault:
            return fault.failure(trial.key)
        except (Exception, KeyboardInterrupt) as error:
            cause = own_traceback(error)
            raised = packed_error(error, cause)
        ended = self.view.get_trial(proposal["number"])
        ended.datetime_complete, news = datetime.now(), self.view.new_attrs(before)
        kept = kept_of(ended, values, state, cause, of_optuna.study._stop_flag, news)
        messages = b""
        exact = is_json([ended.user_attrs, ended.system_attrs, news])
        if raised or not (exact and all(map(says_all, ended.distributions.values()))):
            ended.user_attrs, news = (as_sent(ended.number, attrs) for attrs in (ended.user_attrs, news))
            messages = packed((ended.number, raised, ended, news))
        states = {TrialState.COMPLETE: "", TrialState.PRUNED: PRUNED, TrialState.FAIL: FAILED}
        reports = ended.intermediate_values.items()
        steps = {step: {self.names[0]: value} for step, value in reports if not math.isnan(value)}
        ending = Ending(
            states[state], cause, steps, plain(ended.params),
            self._constraints(ended) if values else (), for_door=kept,
        )  # fmt: skip
        shown = dict(zip(self.names, values or (), strict=False))
        if state == TrialState.PRUNED and len(self.names) == 1:  # as in Optuna
            shown = dict(ending.steps.get(max(ended.intermediate_values, default=0), {}))
        return Evaluation(trial.key, shown, messages=messages, user_attrs=plain(ended.user_attrs), ending=ending)

    def _begun(self, proposal: Mapping[str, Any]) -> OptunaTrial:
        """The trial that rank 0 has asked for, the last of the study as it sees it."""
        number, known = proposal["number"], proposal["known"]
        seen = {name: value for n, new in self._attrs if n <= known for name, value in new.items()}
        self.view.show(self._told[:known], number, seen)
        if pickled := proposal.get("pickled"):  # rank 0 has just made it: no journal is read for it
            content = base64.b64decode(pickled)
            params, space, *attrs = pickle.loads(content)
        else:
            attrs = [whole(proposal["user_attrs"]), whole(proposal["system_attrs"])]
            params, space = unpacked_params(attrs[1][JOINT]["params"])
        self.view.add([running(number, user_attrs=attrs[0], system_attrs=attrs[1])])
        trial = self.view.trial(number, (params, space))
        self._study.__dict__ = vars(trial.study)
        trial.study = self._study
        return trial

    def _constraints(self, trial: FrozenTrial) -> tuple[float, ...]:
        """What `set_constraint` of Optuna 5 was told, or the sampler's function says, as journals have it."""
        constraints = [value for name, value in sorted(trial.system_attrs.items()) if name.startswith("constraints:")]
        with suppress(Exception):  # which rank 0 raises when the trial is told
            constraints = constraints or list(self.constraints(trial) if self.constraints else ())
        return finite(constraints)
