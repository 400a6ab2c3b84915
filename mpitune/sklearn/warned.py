"""Warnings of fits: each process sends them with its results, and the search issues them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sklearn.exceptions import ConvergenceWarning

Seen = list[tuple[str, str]]  # category as module.name, text
T = TypeVar("T")


@contextmanager
def recording() -> Iterator[Callable[[], Seen]]:
    """Gives what tells the warnings since it was last asked, of those that would have been shown.

    Every `ConvergenceWarning` is among them in any case.
    """
    with warnings.catch_warnings(record=True) as seen:
        if _action(ConvergenceWarning) != "error":
            warnings.simplefilter("always", ConvergenceWarning)

        def taken() -> Seen:
            shown = [(f"{w.category.__module__}.{w.category.__qualname__}", str(w.message)) for w in seen]
            seen.clear()
            return shown

        yield taken


def noting(call: Callable[[], T]) -> tuple[T, Seen]:
    """What `call` returns, and the warnings of it."""
    with recording() as taken:
        result = call()
        return result, taken()


def converged(seen: Seen) -> bool:
    """Whether none of them is a `ConvergenceWarning`."""
    return all(not issubclass(_category(name), ConvergenceWarning) for name, _ in seen)


def issue(seen: Iterable[tuple[str, str]]) -> None:
    """Warn of each once, even if many fits had it."""
    for name, text in dict.fromkeys(seen):
        warnings.warn(text, _category(name), stacklevel=2)


def _action(category: type[Warning]) -> str:
    """What the filters of this process do with warnings of that category, for any text and place."""
    for action, message, known, module, _ in warnings.filters:
        if issubclass(category, known) and message is None and module is None:
            return action
    return "default"


def _category(name: str) -> type[Warning]:
    module, _, plain = name.rpartition(".")
    kind = getattr(sys.modules.get(module), plain, None)
    return kind if isinstance(kind, type) and issubclass(kind, Warning) else UserWarning
