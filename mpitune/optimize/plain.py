"""Things as JSON, for a journal and for the way to the workers, where a tuner lets them be anything."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from mpitune.errors import UsageError, named, or_typed, shortened
from mpitune.storage.records import UNREADABLE

NUMBER_MARK = "@mpitune:number"  # the one key of what stands for a number that JSON has no word for


def plain(thing: Any) -> Any:
    """What JSON can say of a thing: numbers of NumPy are numbers, arrays lists; all else that is no JSON is a text."""
    if isinstance(thing, np.generic | np.ndarray):
        thing = thing.tolist()
    if isinstance(thing, float):
        return thing if math.isfinite(thing) else {NUMBER_MARK: str(thing)}
    if isinstance(thing, Mapping):
        return {str(name): plain(value) for name, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [plain(value) for value in thing]
    return thing if thing is None or isinstance(thing, str | int | bool) else str(thing)


def is_json(thing: Any) -> bool:
    """Whether JSON says all of a thing, its type as well. It is not compared: an array, for one, has no such answer."""
    if type(thing) is dict:
        return is_json([*thing, *thing.values()]) and all(type(name) is str for name in thing)
    return all(map(is_json, thing)) if type(thing) is list else thing is None or type(thing) in (str, int, float, bool)


def changed(things: Mapping[str, Any]) -> list[str]:
    """The names of those that JSON has as lists and texts. A number of NumPy is a number there."""
    return [name for name, value in things.items() if not (isinstance(value, np.generic) or is_json(value))]


def say_changed(names: Iterable[str], told: set[str]) -> None:
    """Say, for each name once, which results of known trials are `changed`."""
    if new := [name for name in names if name not in told]:
        told.update(new)
        print(f"trials of an earlier process have lists and texts for {named(new)}", file=sys.stderr)


def whole(thing: Any) -> Any:
    """A thing that `plain` has made JSON of."""
    if isinstance(thing, Mapping):
        return float(thing[NUMBER_MARK]) if thing.keys() == {NUMBER_MARK} else {n: whole(v) for n, v in thing.items()}
    return [whole(value) for value in thing] if isinstance(thing, list | tuple) else thing


@contextmanager
def reading(tuner: str, number: int | None) -> Iterator[None]:
    """Around the reading of what a journal has of a trial. Raises UsageError where it is none of this tuner."""
    try:
        yield
    except UNREADABLE as error:
        raise UsageError(
            f"trial {number} in the journal is none that {tuner} could have ({shortened(str(error))}): use another "
            f"results folder{or_typed('restart')}"
        ) from error
