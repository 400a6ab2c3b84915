"""The source of a user's own code, without what does not count: comments, docstrings, blank lines."""

from __future__ import annotations

import ast
import inspect
import sys
import sysconfig
import textwrap
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_STDLIB = Path(sysconfig.get_path("stdlib"))


class _Counting(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Nothing for a text that stands by itself."""
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else self.generic_visit(node)


def counting(source: str) -> str:
    """What counts of a text in Python; all of another one."""
    with suppress(SyntaxError, ValueError, RecursionError):
        return ast.unparse(_Counting().visit(ast.parse(textwrap.dedent(source))))
    return source


def text_of(thing: Any) -> str:
    """The text of a function or class, "" without one; of a lambda its body alone, since a call may be around it."""
    with suppress(OSError, TypeError, ValueError, SyntaxError, IndexError):
        if getattr(thing, "__name__", "") != "<lambda>":
            return counting(inspect.getsource(getattr(thing, "__code__", thing)))  # not of what a decorator wraps
        places: list[Any] = [place for place in thing.__code__.co_positions() if place[2] != place[3]]
        first, last = min((place[0], place[2]) for place in places), max((place[1], place[3]) for place in places)
        lines = [line.encode() for line in inspect.findsource(thing)[0][first[0] - 1 : last[0]]]
        lines[-1] = lines[-1][: last[1]]
        lines[0] = lines[0][first[1] :]
        return counting(f"({b''.join(lines).decode()})")
    return ""


@cache
def text_of_file(module: str) -> str:
    """The text of a module's file, which is not imported for this; "" without one."""
    top, *rest = module.split(".")
    spec = find_spec(top) if module != "__main__" else None
    file = Path((spec and spec.origin) or ".")
    file = file.parent.joinpath(*rest).with_suffix(".py") if rest else file
    return counting(file.read_text(errors="replace")) if file.suffix == ".py" and file.is_file() else ""


@cache
def is_own(module: str | None) -> bool:
    """Neither installed nor Python's, nor this package."""
    if module == "__main__":
        return True
    if not module or module.partition(".")[0] == "mpitune":
        return False
    try:
        loaded = sys.modules.get(module)
        spec = None if loaded else find_spec(module.partition(".")[0])
        file = Path(getattr(loaded or spec, "__file__" if loaded else "origin", None) or _STDLIB)
    except (ImportError, ValueError, TypeError):
        return False
    return not ({"site-packages", "dist-packages"} & set(file.parts) or file.is_relative_to(_STDLIB))
