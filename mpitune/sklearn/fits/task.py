"""A task of a search: one candidate on one fold, as scikit-learn asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import _check_method_params

from mpitune.identity import label_of
from mpitune.trial import Parameter, Segment, Trial


@dataclass
class Task:
    """A call of scikit-learn's function that fits one candidate on one fold and scores it."""

    estimator: Any  # unfitted, the same in all tasks of a search; who fits it makes a copy
    args: tuple[Any, ...]  # X, y
    kwargs: dict[str, Any]
    callbacks: Any = field(init=False)  # the context of scikit-learn's callbacks, since 1.9, and the search

    def __post_init__(self) -> None:
        self.callbacks = self.kwargs.get("callback_ctx"), self.kwargs.get("caller")
        self.kwargs |= {name: None for name in ("callback_ctx", "caller") if name in self.kwargs}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "callbacks": (None, None)}

    def tell_callbacks(self) -> None:
        """Let callbacks of the search hear what they hear of a fit of scikit-learn, once it has ended."""
        (context, search), kwargs, (X, y) = self.callbacks, self.kwargs, self.args[:2]
        if context is None:
            return
        split = cache(lambda: _safe_split(self.estimator, X, y, kwargs["train"]))  # made for a hook that asks for it
        fit_params = _check_method_params(X, params=kwargs["fit_params"], indices=kwargs["train"])
        metadata = {name: fit_params[name] for name in ("sample_weight",) if fit_params.get(name) is not None} or None
        what = {"estimator": search, "X": lambda: split()[0], "y": lambda: split()[1], "metadata": metadata}
        context.call_on_fit_task_begin(**what)
        context.call_on_fit_task_end(**what)

    @cached_property
    def candidate(self) -> int:
        return int(self.kwargs["candidate_progress"][0])

    @cached_property
    def split(self) -> int:
        return int(self.kwargs["split_progress"][0])

    @cached_property
    def key(self) -> str:
        return f"c{self.candidate:05}/f{self.split}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Those of the candidate."""
        return self.kwargs["parameters"] or {}

    @property
    def weight_name(self) -> str:
        """The argument of `fit` that has the weights of samples for the last step."""
        pipeline = isinstance(self.estimator, Pipeline)
        return f"{self.estimator.steps[-1][0]}__sample_weight" if pipeline else "sample_weight"

    @property
    def given_to_fit(self) -> list[str]:
        """The arguments of `fit` other than samples, labels and weights."""
        names = [name for name, value in self.kwargs["fit_params"].items() if value is not None]
        return [name for name in names if name != self.weight_name]

    def trial(self, labels: Mapping[str, Parameter], types: Any) -> Trial:
        """It has the candidate's parameters as a journal holds them, see `labels`."""
        return Trial(self.key, labels, Segment(self.candidate, self.split, for_objective=types))

    def labels(self) -> tuple[dict[str, Parameter], dict[str, str] | None]:
        """What stands for the parameters; and the types of NumPy's numbers, which a journal has as Python's."""
        labels: dict[str, Parameter] = {}
        types = {}
        for name, value in self.parameters.items():
            if isinstance(value, np.generic) and type(number := value.item()) in (bool, int, float):
                types[name] = value.dtype.name
                value = number
            labels[name] = label_of(unfitted(value))
        return labels, types or None


def splits_of(splits: Sequence[tuple[Any, Any]], n: int) -> dict[str, Any]:
    """What `Winner` is told of (training, test) splits of n samples: `repeats`, or `ratio` and `kind`."""
    samples = np.arange(n)
    tests = [samples[test] for _, test in splits]
    sizes = np.array([len(test) for test in tests])
    repeats, rest = divmod(int(sizes.sum()), n)
    if repeats and not rest and len(tests) % repeats == 0:
        k = len(tests) // repeats
        parts = [np.concatenate(tests[begin : begin + k]) for begin in range(0, len(tests), k)]
        if all(len(part) == len(np.unique(part)) for part in parts):
            return {"repeats": repeats}
    trained = [len(samples[train]) for train, _ in splits]
    apart = len(np.unique(np.concatenate(tests))) == sizes.sum()
    whole = np.mean(sizes + trained) > 0.9 * n  # all samples have a part in nearly every split
    kind = "" if not apart else "parts" if whole else "windows"
    return {"ratio": float(np.mean(sizes / np.maximum(trained, 1))), "kind": kind}


def unfitted(value: Any) -> Any:
    """A parameter as a fit gets it: scikit-learn clones estimators, also those in lists."""
    return clone(value, safe=False) if hasattr(value, "get_params") or isinstance(value, list | tuple) else value
