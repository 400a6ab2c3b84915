"""What an objective keeps to itself, in a global or in `self`: it is lost with the worker, so a line says so.

Only what its own source shows plainly: a false alarm is worse than none.
"""

from __future__ import annotations

import ast
import inspect
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from textwrap import dedent
from typing import Any

GROW = {"append", "appendleft", "extend", "insert"}
ORDER = ast.Lt, ast.LtE, ast.Gt, ast.GtE


def kept_by(objective: Callable[..., Any]) -> list[str]:
    """Names such as `history` and `self.n` that it stores for the script.

    These are lists that grow, counts, and what is the best so far.
    """
    call = objective if inspect.isroutine(objective) else getattr(objective, "__call__", None)  # noqa: B004 - bound
    owner, function = getattr(call, "__self__", None), getattr(call, "__func__", call)
    with suppress(Exception):  # without a source, or of an unknown kind
        return _stored(function, owner)
    return []


def _stored(function: Any, owner: Any) -> list[str]:
    code, nodes = function.__code__, list(ast.walk(ast.parse(dedent(inspect.getsource(function)))))
    if function.__name__ == "<lambda>":  # of which the source is the whole line
        nodes = [part for node in nodes if isinstance(node, ast.Lambda) for part in ast.walk(node)]
    own, me = {*code.co_varnames, *code.co_cellvars}, "" if owner is None else code.co_varnames[0]
    outer = {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names} - own

    def place(node: ast.AST) -> str:
        """The name of what outlives the call; "" for all else."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == me:
            return f"self.{node.attr}"
        return node.id if isinstance(node, ast.Name) and node.id not in own else ""

    def bound(*parts: ast.AST) -> set[str]:
        stores = (node for part in parts for node in ast.walk(part) if isinstance(getattr(node, "ctx", 0), ast.Store))
        return {name for name in map(place, stores) if name in outer or name.startswith("self.")}

    stored, fresh = set[str](), set[str]()  # fresh: what each call begins anew
    for node in nodes:
        match node:
            case ast.If(test, body) if _orders(test) and bound(*body) & {*map(place, ast.walk(test))}:
                stored |= bound(*body)  # the best so far, and what belongs to it
            case ast.AugAssign(target):
                stored |= bound(target)
            case ast.Assign(targets, ast.IfExp(test)) if _orders(test):
                stored |= bound(*targets) & {*map(place, ast.walk(test))}
            case ast.Assign(targets, ast.Call(ast.Name("max" | "min"), arguments)):
                stored |= bound(*targets) & {*map(place, arguments)}
            case ast.Assign(targets, ast.List()):
                fresh |= bound(*targets)
            case ast.Call(ast.Attribute(of, name)) if name in GROW and (known := place(of)):
                if isinstance(_value(function, owner, known), list | deque):
                    stored.add(known)
    return sorted(stored - fresh)


def _orders(test: ast.AST) -> bool:
    return any(isinstance(node, ast.Compare) and isinstance(node.ops[0], ORDER) for node in ast.walk(test))


def _value(function: Any, owner: Any, name: str) -> Any:
    """What a name that is not its own means to a function."""
    if name.startswith("self."):
        return inspect.getattr_static(owner, name[5:], None)
    return inspect.getclosurevars(function).nonlocals.get(name, function.__globals__.get(name))
