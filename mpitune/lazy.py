"""Packages whose names are loaded when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def front(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, by its imports for type checkers: `from a.b import c as c`.

    They stand nowhere else, so its source is read.
    """
    module: Any = sys.modules[package]
    lines = [line.split() for line in module.__spec__.loader.get_data(module.__file__).decode().splitlines()]
    home = {words[3]: words[1] for words in lines if words[:1] == ["from"] and words[4:5] == ["as"]}

    def get(name: str) -> Any:
        if name in home:
            return getattr(import_module(home[name]), name)
        from difflib import get_close_matches

        close = get_close_matches(name, home, 1)
        raise AttributeError(
            f"module {package} has no attribute {name}" + (f": did you mean {close[0]}?" if close else "")
        )

    return get, lambda: [*vars(module), *home], list(home)
