"""A smaller case that differs in the same way: parts of its text are taken out one after the other."""

from __future__ import annotations

import ast
import copy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tests.differential.case import Case


def shrunk(case: Case, differs: Callable[[Case], bool], seconds: float = 60.0) -> Case:
    """The smallest case that was found within that time."""
    end, again = time.monotonic() + seconds, True
    while again:
        again = False
        for smaller in _smaller(case):
            if time.monotonic() > end:
                return case
            try:
                if differs(smaller):
                    case, again = smaller, True
                    break
            except Exception:  # it is no case any more
                continue
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Cases with one thing less, the largest things first."""
    if case.search != "GridSearchCV":
        kept = {
            key: text
            for key, text in case.options.items()
            if key in ("scoring", "cv", "refit", "return_train_score", "error_score")
        }
        yield replace(case, search="GridSearchCV", options=kept)
    for name in ("options", "ours", "given"):
        held: Mapping[str, str] = getattr(case, name)
        for key in held:
            yield replace(case, **{name: {other: text for other, text in held.items() if other != key}})
    for place, grid in enumerate(case.grids):
        if len(case.grids) > 1:
            yield replace(case, grids=case.grids[:place] + case.grids[place + 1 :])
        for smaller in _smaller_grids(grid):
            yield replace(case, grids=(*case.grids[:place], smaller, *case.grids[place + 1 :]))
    for place in range(len(case.lines) - 1, 2, -1):
        yield replace(case, lines=case.lines[:place] + case.lines[place + 1 :])
    for text in _texts(case.model):
        yield replace(case, model=text)
    for name, option in case.options.items():
        for text in _texts(option):
            yield replace(case, options={**case.options, name: text})
    n, p = (int(part) for part in case.lines[0].partition("=")[2].split(","))
    for fewer in ((n // 2, p), (n * 3 // 4, p), (n - 1, p), (n, p // 2), (n, p - 1)):
        if fewer[0] >= 4 and fewer[1] >= 1:
            yield replace(case, lines=(f"n, p = {fewer[0]}, {fewer[1]}", *case.lines[1:]))


def _smaller_grids(grid: Mapping[str, tuple[str, ...]]) -> Iterator[dict[str, tuple[str, ...]]]:
    for key, values in grid.items():
        yield {other: each for other, each in grid.items() if other != key}
        half = len(values) // 2
        parts = [values[:half], values[half:]] if len(values) > 2 else []
        parts += [values[:i] + values[i + 1 :] for i in range(len(values))] if len(values) > 1 else []
        yield from ({**grid, key: part} for part in parts)


def _texts(text: str) -> Iterator[str]:
    """The expression with an argument or an element less, or with one of its parts in its place."""
    tree = ast.parse(text, mode="eval")
    places = [node for node in ast.walk(tree) if isinstance(node, ast.Call | ast.List | ast.Dict)]
    for number, node in enumerate(places):
        for name in ("keywords", "args", "elts", "keys"):
            parts: list[Any] = getattr(node, name, [])
            if name in ("elts", "keys") and len(parts) < 2:
                continue
            for i in range(len(parts)):
                other = copy.deepcopy(tree)
                found = [n for n in ast.walk(other) if isinstance(n, ast.Call | ast.List | ast.Dict)][number]
                del getattr(found, name)[i]
                if name == "keys":
                    del found.values[i]  # type: ignore[union-attr]
                yield ast.unparse(other)
