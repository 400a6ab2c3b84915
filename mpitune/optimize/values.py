"""What an objective may return, and what is wrong with what it did."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mpitune.errors import StorageError, how_to_go_on, utf8
from mpitune.trial import Ending, Evaluation, Fault

NUMBER, NAMED = (float, numbers.Real), (dict, Mapping)  # the usual class first, which is found fastest


class InvalidReturnValue(Exception):
    """An objective returned something wrong: the search ends. The text says what to return."""

    fault = Fault.OBJECTIVE

    def failure(self, key: str) -> Evaluation:
        """That of the trial of this key."""
        what = f"{self.fault.value}: " if self.fault is not Fault.FOLDER else ""
        return Evaluation(key, error=f"{what}{self}", ending=Ending(fault=self.fault))


class NoValue(InvalidReturnValue):
    """An objective without a value in this trial, which another trial may have: only the first one ends the search.

    A training may have diverged, or a program have been killed.
    """

    fault = Fault.NO_VALUE


class FolderFault(InvalidReturnValue, StorageError):
    """What this package has in the folder of a trial cannot be read or written."""

    fault = Fault.FOLDER


@contextmanager
def no_fault_of_the_trial(path: Path) -> Iterator[None]:
    """Around work of ours in the folder of a trial. Raises FolderFault in place of OSError."""
    try:
        yield
    except OSError as error:
        raise FolderFault(f"{path} cannot be read or written ({error.strerror or error}): fix that") from error


def refuse_faults(evaluation: Evaluation) -> None:
    """Raise StorageError where a trial has an error because of a FolderFault."""
    if evaluation.ending.fault is Fault.FOLDER:
        raise StorageError(f"{evaluation.error}; {how_to_go_on()}")


def as_json(name: str, value: Any) -> Any:
    """A user attribute as a journal gives it back. Raises InvalidReturnValue, NoValue where it is not finite."""
    try:
        return json.loads(json.dumps({str(name): value}, allow_nan=False, default=np.generic.item))[name]
    except (TypeError, ValueError, OverflowError, RecursionError, KeyError) as error:
        why = f"it gave {value!r:.100} as user attribute {name!r:.100}: give JSON, as texts, finite numbers and lists"
        raise (NoValue if isinstance(error, ValueError) else InvalidReturnValue)(why) from error


def values_of(returned: Any, names: Sequence[str]) -> dict[str, float]:
    """What an objective has returned by name: at least the values of these names.

    Raises InvalidReturnValue, NoValue where one is NaN.
    """
    if isinstance(returned, NUMBER) and len(names) == 1:
        returned = {names[0]: returned}
    if not isinstance(returned, NAMED):
        what = "None" if returned is None else f"a {type(returned).__name__}"
        raise InvalidReturnValue(f"it returned {what}: return {_example(names)}")
    for name in names:
        if name not in returned:
            there = ", ".join(map(str, returned)) or "{}"
            raise InvalidReturnValue(f"it returned {there} without {name}: return {_example(names)}")
    values = {}
    for name, value in returned.items():
        if not isinstance(name, str) or utf8(name) != name:
            raise InvalidReturnValue(f"it returned a value called {name!r}: give it a text of UTF-8 as its name")
        if not isinstance(value, NUMBER):
            fix = f"give a number, such as float({name})"
            raise InvalidReturnValue(f"it returned a {type(value).__name__} as {name}: {fix}")
        values[name] = float(value)
        if math.isnan(values[name]):
            raise NoValue(
                f"it returned NaN as {name}: give float('inf') where a training has diverged (-inf to maximize)"
            )
    return values


def _example(names: Sequence[str]) -> str:
    return "{" + ", ".join(f"{name!r}: ..." for name in names) + "}"


def require_same_names(values: Mapping[str, float], before: Mapping[str, float]) -> None:
    """Raise InvalidReturnValue unless two trials have the same values by name."""
    new, old = sorted(values), sorted(before)
    if new != old:
        raise InvalidReturnValue(
            f"it returned {', '.join(new)}, before {', '.join(old)}: return the same names in each trial"
        )
