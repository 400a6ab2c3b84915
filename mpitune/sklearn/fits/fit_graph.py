"""The plan of a search: a graph of fits, made before the work, that says which candidates hang below which fit.

Candidates of a Pipeline run through its steps. Candidates share the fit of a step if they share all steps before it and
agree in the parameters of this one. If the class of the step has a family (`mpitune.sklearn.sharing`), they may differ
in what the family shares. The graph is walked depth first. So each fit is made once, and only the samples between the
steps of one path are in memory.
"""

from __future__ import annotations

import pickle
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import joblib
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from mpitune.sklearn.sharing.family import Family

Find = Callable[[Any], Family | None]  # the family of an estimator
_WARNED: set[str] = set()


@dataclass(frozen=True)
class Setting:
    """A step with its own values of what a fit shares."""

    values: Mapping[str, Any]  # of the parameters that the settings of a fit differ in
    candidates: tuple[int, ...]  # their numbers
    fits: tuple[StepFit, ...] = ()  # those of the next step that hang below; none at the end


@dataclass(frozen=True)
class StepFit:
    """A fit on one split, and what hangs below it."""

    name: str  # of the step
    model: Any  # unfitted, with the parameters that all settings have in common; None for a step that does nothing
    common: Mapping[str, Any]  # those of these parameters that are searched
    family: Family | None  # what fits several settings at once; None where there is one setting only
    settings: tuple[Setting, ...]  # that are made of this fit

    @property
    def candidates(self) -> tuple[int, ...]:
        return tuple(number for setting in self.settings for number in setting.candidates)

    @property
    def is_single(self) -> bool:
        """Whether nothing but scikit-learn's own fits of one candidate hangs here: no family fits a step of it."""
        return len(self.candidates) == 1 and not self._has_family

    @property
    def _has_family(self) -> bool:
        return self.family is not None or any(fit._has_family for fit in self.below)

    @property
    def below(self) -> tuple[StepFit, ...]:
        """The fits of the next step."""
        return tuple(fit for setting in self.settings for fit in setting.fits)

    @property
    def ends(self) -> Iterator[StepFit]:
        """The fits of the last step, from left to right."""
        if not self.below:
            yield self
        for fit in self.below:
            yield from fit.ends

    @property
    def n_fits(self) -> int:
        """Fits on one split, this one and those below; a step that does nothing has none."""
        return (self.model is not None) + sum(fit.n_fits for fit in self.below)

    def steps_alone(self) -> int:
        """The fits on one split that the candidates need one by one."""
        return (self.model is not None) * len(self.candidates) + sum(fit.steps_alone() for fit in self.below)

    def lines(self, indent: str = "") -> Iterator[str]:
        """The tree as text."""
        yield f"{indent}{self._text()}: {_number(len(self.candidates), 'candidate')}"
        merged: dict[str, tuple[StepFit, int]] = {}  # equal trees below different settings are printed once
        for fit in self.below:
            text = "\n".join(fit.lines())
            merged[text] = (fit, merged.get(text, (fit, 0))[1] + 1)
        for fit, times in merged.values():
            head, *rest = fit.lines(indent + "    ")
            yield f"{head}, {times} times" if times > 1 else head
            yield from rest

    def _text(self) -> str:
        words = "nothing" if self.model is None else type(self.model).__name__
        words += "".join(f" {key}={_short(value)}" for key, value in self.common.items() if self.model is not None)
        if self.family is None:
            return words
        names = dict.fromkeys(key for setting in self.settings for key in setting.values)
        texts = []
        for name in names:
            values = dict.fromkeys(_short(s.values[name]) for s in self.settings if name in s.values)
            texts.append(f"{name} {_range(list(values))}")
        return f"{words}, one fit for {' and '.join(texts)}"


@dataclass(frozen=True, repr=False)
class Plan:
    """What the candidates of a search share."""

    fits: tuple[StepFit, ...]  # the first ones of the graph, the same on each split
    alone: Mapping[int, str]  # numbers of the candidates that share nothing, with the reason
    n_splits: int  # on how many all of it is done

    @property
    def n_fits(self) -> int:
        """Fits of single steps that will be made on all splits, without the refit."""
        return self.n_splits * (sum(fit.n_fits for fit in self.fits) + len(self.alone))

    @property
    def n_saved(self) -> int:
        """Fits of single steps that are saved: a prefix, a path or a decomposition counts as one fit."""
        return self.n_splits * sum(fit.steps_alone() - fit.n_fits for fit in self.fits)

    def __str__(self) -> str:
        lines = [line for fit in self.fits for line in fit.lines()]
        reasons = Counter(self.alone.values())
        lines += [f"one by one: {_number(n, 'candidate')}, as {reason}" for reason, n in reasons.items()]
        head = _number(self.n_fits, "step fit")
        if self.n_saved:
            head += f" instead of {self.n_fits + self.n_saved}"
        return "\n".join([head, *("    " + line for line in lines)])

    __repr__ = __str__  # what a notebook shows


def graph(estimator: Any, candidates: Mapping[int, Mapping[str, Any]], find: Find) -> tuple[StepFit, ...]:
    """The graph of the fits of candidates (parameters by number) on one split."""
    steps = estimator.steps if isinstance(estimator, Pipeline) else [("", estimator)]
    return _fits(steps, 0, candidates, find)


def _fits(
    steps: Sequence[tuple[str, Any]], level: int, candidates: Mapping[int, Mapping[str, Any]], find: Find
) -> tuple[StepFit, ...]:
    name, template = steps[level]
    prefix = f"{name}__" if name else ""
    families: dict[int, Family | None] = {}
    groups: dict[Any, tuple[Any, dict[str, Any], list[tuple[int, dict[str, Any]]]]] = {}
    for number, parameters in candidates.items():
        whole = parameters.get(name, template) if name else template
        own = {key[len(prefix) :]: value for key, value in parameters.items() if key.startswith(prefix)}
        if id(whole) not in families:
            families[id(whole)] = None if whole in (None, "passthrough") else find(whole)
        family = families[id(whole)]
        common = {key: value for key, value in own.items() if family is None or not family.shares(key)}
        key = (whole is template or digest(whole), digest(common))
        group = groups.setdefault(key, (whole, common, []))
        group[2].append((number, {key: value for key, value in own.items() if key not in common}))
    made: list[StepFit] = []
    for whole, common, members in groups.values():
        nothing = whole in (None, "passthrough")
        model = None if nothing else configured(whole, common)
        family = None if nothing else find(whole)
        by_setting: dict[Any, list[tuple[int, dict[str, Any]]]] = {}
        for number, values in members:
            by_setting.setdefault(digest(values), []).append((number, values))
        if family is not None and ((len(by_setting) == 1 and not family.single) or _refused(family, model)):
            family = None
        settings = []
        for same in by_setting.values():
            below = {number: candidates[number] for number, _ in same}
            fits = _fits(steps, level + 1, below, find) if level + 1 < len(steps) else ()
            settings.append(Setting(same[0][1], tuple(below), fits))
        text = name or type(whole).__name__
        if family is not None:
            made.append(StepFit(text, model, common, family, tuple(settings)))
            continue
        for setting in settings:
            alone = None if model is None else configured(model, setting.values)
            only = (Setting({}, setting.candidates, setting.fits),)
            made.append(StepFit(text, alone, {**common, **setting.values}, None, only))
    return tuple(made)


def configured(model: Any, parameters: Mapping[str, Any]) -> Any:
    """An unfitted copy with these parameters."""
    return clone(model).set_params(**cloned(parameters)) if parameters else clone(model)


def _refused(family: Family, model: Any) -> bool:
    """Whether this model shares nothing, which is said once in a process."""
    reason = family.why_not(model)
    if reason is None:
        return False
    text = f"candidates of {type(model).__name__} share no fit: {reason}"
    if text not in _WARNED:
        _WARNED.add(text)
        warnings.warn(text, UserWarning, stacklevel=2)
    return True


def digest(thing: Any) -> Any:
    """A key that is equal for equal things."""
    if isinstance(thing, Mapping) and all(isinstance(value, str | int | float) for value in thing.values()):
        return tuple(sorted((key, type(value).__name__, value) for key, value in thing.items()))
    try:
        return joblib.hash(thing)
    except (pickle.PicklingError, TypeError, AttributeError):  # it holds a lambda, for instance
        return tuple((name, id(value)) for name, value in thing.items()) if isinstance(thing, Mapping) else id(thing)


def cloned(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of estimators among the parameters, as scikit-learn's search makes them."""
    return {name: clone(value, safe=False) for name, value in parameters.items()}


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else f"{value:.4g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 30 else text[:27] + "..."


def _range(values: Sequence[str]) -> str:
    return (
        ", ".join(values) if len(values) <= 6 else f"{values[0]}, {values[1]} ... {values[-1]} ({len(values)} values)"
    )
