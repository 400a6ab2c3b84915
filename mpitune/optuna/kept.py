"""What an objective keeps to itself, in a global or in `self`: it is lost with the worker, so a line says so.

Only what its source shows plainly: a false alarm is worse than none.
"""

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
UPDATES = {"max", "min", "maximum", "minimum", "concat", "concatenate", "append", "vstack", "hstack", "union"}
CONTAINERS = list, dict, set, deque, np.ndarray
COMPARISONS = ast.Lt, ast.LtE, ast.Gt, ast.GtE


def kept_by(objective: Callable[..., Any]) -> list[str]:
    """Names such as `history` and `self.best_model` that it stores for the script, as its source shows.

    These are lists that grow, counts, what is the best so far, and dicts and sets that nothing reads back as a cache.
    What each call begins anew is its own.
    """
    stored: dict[str, bool] = {}  # by name, whether it counts in any case
    read, fresh = set[str](), set[str]()
    for function, owner in _functions(objective):
        with suppress(Exception):  # without a source, or of an unknown kind
            _look(function, owner, stored, read, fresh)
    return sorted(name for name in stored.keys() - fresh if stored[name] or name not in read)


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
            function = getattr(type(owner), name, None) or _outer(thing, name)
            if isinstance(function, types.FunctionType) and function.__module__ == thing.__module__:
                open_.append((function, owner if hasattr(type(owner), name) else None))


def _outer(function: types.FunctionType, name: str) -> Any:
    """What a function means by a name that is not its own."""
    if name in function.__code__.co_freevars:
        with suppress(ValueError):  # nothing so far
            return (function.__closure__ or ())[function.__code__.co_freevars.index(name)].cell_contents
    return function.__globals__.get(name)


def _look(function: types.FunctionType, owner: Any, stored: dict[str, bool], read: set[str], fresh: set[str]) -> None:
    """Note what the source of a function stores, reads and begins anew."""
    code, nodes = function.__code__, list(ast.walk(ast.parse(dedent(inspect.getsource(function)))))
    if function.__name__ == "<lambda>":  # of which the source is the whole line
        nodes = [part for node in nodes if isinstance(node, ast.Lambda) for part in ast.walk(node)]
    own, self_name = {*code.co_varnames, *code.co_cellvars}, "" if owner is None else code.co_varnames[0]
    declared = {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names} - own

    def place(node: ast.AST) -> str:
        """The name of what outlives the call; "" for all else."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == self_name:
            return f"self.{node.attr}"
        return node.id if isinstance(node, ast.Name) and node.id not in own else ""

    def bound(*parts: ast.AST) -> list[str]:
        names = [
            place(node) for part in parts for node in ast.walk(part) if isinstance(getattr(node, "ctx", 0), ast.Store)
        ]
        return [name for name in names if name in declared or name.startswith("self.")]

    under_if = {part for node in nodes if isinstance(node, ast.If) for part in ast.walk(node)}
    no_reading: set[ast.AST] = set()
    for node in nodes:
        into, names, grows = node, list[str](), False
        match node:
            case ast.If(test, body) if _orders(test) and {*map(place, ast.walk(test))} & {*bound(*body)}:
                names = bound(*body)
            case ast.Compare() if _orders(node):
                no_reading.update(ast.walk(node))
            case ast.Call(ast.Name("len" | "print"), args):
                no_reading.update(args)
            case ast.Assign(targets, value):
                known = [*map(place, ast.walk(value))]
                names = [name for name in bound(*targets) if name in known and _updates(value)]
                fresh.update(name for name in bound(*targets) if name not in known and node not in under_if)
            case ast.AugAssign(into):
                names, grows = bound(into), True
            case ast.Call(ast.Attribute(of, name)) if name in ADDS:
                into, grows = of, isinstance(of, ast.Subscript)
        while isinstance(into, ast.Subscript) and (into is not node or isinstance(into.ctx, ast.Store)):
            into = into.value
        if into is not node and (name := place(into)):
            no_reading.add(into)
            value = inspect.getattr_static(owner, name[5:], None) if name[:5] == "self." else _outer(function, name)
            if isinstance(value, CONTAINERS):
                grows = grows or (isinstance(node, ast.Call) and isinstance(value, list | deque))
                stored[name] = stored.get(name, False) or grows
        stored.update(dict.fromkeys(names, True))
    read.update(
        place(node) for node in nodes if node not in no_reading and isinstance(getattr(node, "ctx", 0), ast.Load)
    )


def _orders(test: ast.AST) -> bool:
    return any(isinstance(node, ast.Compare) and isinstance(node.ops[0], COMPARISONS) for node in ast.walk(test))


def _updates(value: Any) -> bool:
    """Whether an expression with a name makes more of it, rather than keep what is there."""
    if isinstance(value, ast.Call):
        return (getattr(value.func, "attr", "") or getattr(value.func, "id", "")) in UPDATES
    return isinstance(value, ast.BinOp | ast.List | ast.Dict) or (isinstance(value, ast.IfExp) and _orders(value.test))
