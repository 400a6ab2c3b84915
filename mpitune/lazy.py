"""Packages whose names are loaded when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def front(
    package: str, homes: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, whose names these modules of it have."""
    home = {name: f"{package}.{module}" for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name in home:
            return getattr(import_module(home[name]), name)
        from difflib import get_close_matches

        close = get_close_matches(name, home, 1)
        raise AttributeError(
            f"module {package} has no attribute {name}" + (f": did you mean {close[0]}?" if close else "")
        )

    return get, lambda: [*vars(sys.modules[package]), *home], list(home)
