"""A trial of hyperopt in a worker, and what its answer says."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import numpy as np
from hyperopt import STATUS_OK, Ctrl, Domain, trials_from_docs
from hyperopt.pyll import dfs, scope
from hyperopt.utils import coarse_utcnow

from mpitune.errors import UsageError, own_traceback
from mpitune.experiment import Data
from mpitune.optimize.plain import changed, is_json, plain, reading, whole
from mpitune.processes.pickles import packed_call, read_call
from mpitune.processes.process import as_sent, packed, packed_error
from mpitune.trial import FAILED, Batch, Ending, Evaluation, Trial

MODULE: Any = sys.modules["hyperopt.fmin"]  # which the package hides behind its function


class Kept(msgspec.Struct):
    """What a worker says of a trial, as JSON. Anyone may have written a journal with it."""

    begun: datetime
    ended: datetime
    result: dict[str, Any]
    attachments: dict[str, Any]  # by the names that `Trials` has
    binary: dict[str, bytes]  # attachments that are bytes
    texts: list[str]  # of both: those that JSON has otherwise
    error: tuple[str, str] | None  # its class and text


def read_kept(content: Any, number: int) -> Kept:
    """Raises UsageError."""
    with reading("hyperopt", number):
        kept = msgspec.convert(content, Kept)
        kept.result, kept.attachments = whole(kept.result), whole(kept.attachments) | kept.binary
        if kept.error is None and kept.result["status"] == STATUS_OK and not isinstance(kept.result["loss"], float):
            raise ValueError("its loss is no number")
    return kept


def typed_values(vals: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Values of a trial as JSON, each with the NumPy type that it has. Raises UsageError."""
    typed = {}
    for label, value in ((label, some[0]) for label, some in vals.items() if len(some)):
        kind = value.dtype.name if isinstance(value, np.number | np.bool_) else ""
        if not kind and not is_json(value):
            raise UsageError(f"{label} is {value!r:.100}: give points of numbers and texts")
        typed[label] = [kind, plain(value)]
    return typed


@dataclass
class InWorker:
    """Evaluates trials. `packed`: hyperopt's `Domain` without large arrays, and functions that its space calls."""

    packed: bytes
    exp_key: Any  # of the trials

    keeps_worker = True

    @classmethod
    def of(cls, domain: Domain, arrays: dict[str, np.ndarray], exp_key: Any) -> InWorker:
        """Of a space that may call functions of the script, by `scope.define`."""
        called = {node.name: scope._impls[node.name] for node in dfs(domain.expr) if node.name in scope._impls}
        own = {name: function for name, function in called.items() if not function.__module__.startswith("hyperopt.")}
        return cls(packed_call((domain, own), arrays), exp_key)

    def begin(self, data: Data) -> InWorker:
        """In the worker, which has the arrays."""
        self._domain, own = read_call(self.packed, data)
        scope._impls.update(own)
        return self

    def __call__(self, batch: Batch) -> Iterator[Evaluation]:
        return map(self._evaluated, batch)

    def _evaluated(self, trial: Trial) -> Evaluation:
        number, typed = trial.segment.number, trial.segment.for_objective
        config = {n: np.dtype(kind).type(whole(value)) if kind else whole(value) for n, (kind, value) in typed.items()}
        doc = MODULE.generate_trial(number, config) | {"exp_key": self.exp_key}
        trials = trials_from_docs([doc], validate=False, exp_key=self.exp_key)
        begun, result, error, raised = coarse_utcnow(), dict[str, Any](), None, b""
        try:
            result = self._domain.evaluate(config, Ctrl(trials, trials.trials[0]))
            if len(trials._dynamic_trials) > 1:
                raise RuntimeError("ctrl.inject_results adds trials, which a worker cannot: use points_to_evaluate")
        except (Exception, KeyboardInterrupt) as caught:
            error, raised = (str(type(caught)), str(caught)), packed_error(caught, own_traceback(caught))
        result, attachments = as_sent(number, result), as_sent(number, trials.attachments)
        binary = {name: value for name, value in attachments.items() if type(value) is bytes}
        others = {name: value for name, value in attachments.items() if name not in binary}
        texts = changed({**result, **others})
        kept = Kept(begun, coarse_utcnow(), plain(result), plain(others), binary, texts, error)
        exact = raised or binary or not is_json([result, others])  # more than a journal can say
        loss = float(result["loss"]) if result.get("status") == STATUS_OK else float("nan")
        values = {} if loss != loss else {"loss": loss}
        cause = error[1] if error else "" if values else f"status {result['status']}, loss {result.get('loss')}"
        return Evaluation(
            trial.key, values, messages=packed((number, raised, *((result, attachments) if exact else ()))),
            ending=Ending("" if values else FAILED, cause, chosen=plain(config), for_door=msgspec.to_builtins(kept)),
        )  # fmt: skip
