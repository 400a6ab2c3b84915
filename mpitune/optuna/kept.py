"""What an objective keeps to itself, in a global or in `self`: it is lost with the worker, so a line says so."""

from __future__ import annotations

import ast
import inspect
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from textwrap import dedent
from typing import Any

import numpy as np

ADDS = {"append", "appendleft", "extend", "insert", "add", "update", "setdefault"}
CONTAINERS = list, dict, set, deque, np.ndarray
ORDER = ast.Lt, ast.LtE, ast.Gt, ast.GtE


def kept_by(objective: Callable[..., Any]) -> list[str]:
    """Names such as `history` and `self.best_model` that it stores for the script, as its source shows.

    What it reads back is a cache or a note of its own, unless it only compares it ("is this the best?") or counts.
    """
    stored: dict[str, bool] = {}  # by name, whether it counts in any case
    read: set[str] = set()
    for function, owner in _functions(objective):
        with suppress(Exception):  # without a source, or of an unknown kind
            _look(function, owner, stored, read)
    return [name for name, always in stored.items() if always or name not in read]


def _functions(objective: Any) -> Iterator[tuple[types.FunctionType, Any]]:
    """The objective, and what it calls of the same module, each with its `self`."""
    open_: list[tuple[Any, Any]] = [(objective, None)]
    seen = set[Any]()
    while open_:
        thing, owner = open_.pop()
        while isinstance(thing, partial):
            thing = thing.func
        if not isinstance(thing, types.FunctionType | types.MethodType | type) and callable(thing):
            thing = getattr(thing, "__call__", thing)  # noqa: B004 - of an instance, bound
        if isinstance(thing, types.MethodType):
            thing, owner = thing.__func__, thing.__self__  # type: ignore[attr-defined]
        thing = inspect.unwrap(thing)
        if not isinstance(thing, types.FunctionType) or thing in seen:
            continue
        seen.add(thing)
        yield thing, owner
        for name in [*thing.__code__.co_names, *thing.__code__.co_freevars]:
            found = getattr(type(owner), name, None) or _outer(thing, name)
            if isinstance(found, types.FunctionType) and found.__module__ == thing.__module__:
                open_.append((found, owner if hasattr(type(owner), name) else None))


def _outer(function: types.FunctionType, name: str) -> Any:
    """What a function means by a name that is not its own."""
    if name in function.__code__.co_freevars:
        with suppress(ValueError):  # nothing so far
            return (function.__closure__ or ())[function.__code__.co_freevars.index(name)].cell_contents
    return function.__globals__.get(name)


def _look(function: types.FunctionType, owner: Any, stored: dict[str, bool], read: set[str]) -> None:
    """Note what the source of a function stores and reads."""
    tree, code = ast.parse(dedent(inspect.getsource(function))), function.__code__
    own = {*code.co_varnames, *code.co_cellvars}
    self_name = code.co_varnames[0] if owner is not None and code.co_argcount else ""
    nodes = list(ast.walk(tree))
    outside = {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}

    def place(node: ast.AST) -> tuple[str, Any]:
        """The name of what outlives the call, and what it is now; "" for all else."""
        if isinstance(node, ast.Name) and (node.id in outside or node.id not in own):
            return node.id, _outer(function, node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            of = owner if node.value.id == self_name else place(node.value)[1]
            if of is not None and not isinstance(of, types.ModuleType):
                name = f"{'self' if of is owner else node.value.id}.{node.attr}"
                return name, inspect.getattr_static(of, node.attr, None)
        return "", None

    stores: set[ast.AST] = set()  # what is named to store in it, which is no reading
    for node in nodes:
        counts, calls = isinstance(node, ast.AugAssign), isinstance(node, ast.Call)
        at: Any = node.target if isinstance(node, ast.AugAssign) else node
        if calls and isinstance(at.func, ast.Attribute) and at.func.attr in ADDS:
            into = at.func.value
        elif isinstance(at, ast.Name | ast.Attribute | ast.Subscript) and isinstance(at.ctx, ast.Store):
            into = at.value if isinstance(at, ast.Subscript) else at
        else:
            continue
        stores.add(into)
        name, value = place(into)
        if name and (counts or into is at or isinstance(value, CONTAINERS)):
            always = isinstance(value, list) if calls else counts and (into is at or isinstance(value, CONTAINERS))
            stored[name] = stored.get(name, False) or always
    for node in nodes:
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ORDER):
            stores.update((node.left, *node.comparators))
        name = "" if node in stores else place(node)[0]
        read.update([name] if name else [])
