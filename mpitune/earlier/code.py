"""Digests of what a study calls of its user's own code, so that one that continues can say what has changed.

A function or class counts with its text, a module beside that of the objective with its file, see `mpitune.source`.
What has no source (typed in, built in, in C) is known by its name only.
"""

from __future__ import annotations

import dis
import hashlib
from collections.abc import Iterator, Mapping
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from mpitune.identity import identity
from mpitune.source import is_own, text_of, text_of_file

MOST_ITEMS = 1000  # of a list or dict; longer ones are data
MOST_THINGS = 10_000  # that are looked at
MOST_BYTES = 1 << 22  # of an array; larger ones take their time
IS = "= "  # how a value begins, which is its own digest
MAY_BE_TIME = 1e9  # numbers from here on may be times, which differ each time
_HOLDERS = ("sklearn.", "argparse", "types")  # of modules whose objects are walked
_WRAPPED = ("__wrapped__", "py_func", "func")  # where decorators have what they decorate


def digests(called: Mapping[str, Any]) -> dict[str, str]:
    """Digests by name of the sources that `called` leads to; "" where there is none. A text in it is a source, too."""
    texts: dict[str, set[str]] = {}
    home = {"__main__", *(getattr(thing, "__module__", None) for thing in called.values())}
    as_text = {name: thing for name, thing in called.items() if isinstance(thing, str)}
    text_of_file.cache_clear()  # files may have been edited
    sources = (source for name, thing in _walk(called) for source in _sources(name, thing, home))
    for name, text in (*as_text.items(), *sources):
        texts.setdefault(name, set()).update([text] if text else [])
    joined = {name: "\n".join(sorted(some)) for name, some in sorted(texts.items())}
    return {name: text if text.startswith(IS) else _digest(text) if text else "" for name, text in joined.items()}


def values_read(called: Mapping[str, Any]) -> dict[str, str]:
    """Plain values that functions read: of globals, closures, defaults, arguments, attributes; for `digests`."""
    texts: dict[str, set[str]] = {}
    read = set[str]()
    for name, thing in _walk(called):
        if isinstance(thing, FunctionType):
            for code in _codes(thing.__code__):
                read.update(code.co_names, code.co_varnames, code.co_freevars)
        elif text := _plain(thing):
            texts.setdefault(name, set()).add(text)
    read -= {"n_trials", "timeout"}  # of the study
    return {name: IS + " and ".join(sorted(some)) for name, some in texts.items() if name.rpartition(".")[2] in read}


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Names whose sources differ, where both are known."""
    gone = [name for name in before if name not in now]
    new = [name for name in now if name not in before] if gone else []  # else what calls it has changed too
    return [name for name in before if before[name] and now.get(name) not in ("", None, before[name])] or gone + new


def told(before: Mapping[str, str], now: Mapping[str, str], name: str) -> str:
    """A name that has changed, with the numbers that it stood and stands for."""
    was, is_ = before.get(name, ""), now.get(name, "")
    return f"{name} (was {was[2:]}, is {is_[2:]})" if was[:2] == is_[:2] == IS and "#" not in was + is_ else name


def _walk(called: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What `called` leads to, by name."""
    waiting = [(_name_of(thing, name), thing) for name, thing in called.items()]
    seen: dict[int, Any] = {}  # with the things, so that no other gets the identity of one
    while waiting and len(seen) < MOST_THINGS:
        name, thing = waiting.pop()
        yield name, thing
        if not (_plain(thing) or id(thing) in seen):
            seen[id(thing)] = thing
            waiting += [(_name_of(part, there or name), part) for there, part in _parts(thing)]


def _plain(value: Any) -> str:
    """Numbers where they are few, else a digest, as of texts and arrays; "" for what may be a time, and all else."""
    if isinstance(value, np.ndarray | np.generic):
        return "" if value.nbytes > MOST_BYTES or value.dtype.hasobject else f"#{identity(value)[:16]}"
    some = value if type(value) in (tuple, list) else (value,)
    if len(some) > MOST_ITEMS or not all(type(one) in (bool, int, float, str) for one in some):
        return ""
    numbers = [one for one in some if not isinstance(one, str)]
    if any(MAY_BE_TIME <= abs(one) < float("inf") for one in numbers):
        return ""
    return repr(value) if len(numbers) == len(some) <= 9 else f"#{_digest(repr(value))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _sources(name: str, thing: Any, home: set[Any]) -> Iterator[tuple[str, str]]:
    """The texts of a function with the modules that it imports when it is called, of a class, or of a module."""
    if not isinstance(thing, FunctionType | type | ModuleType):
        return
    module = thing.__name__ if isinstance(thing, ModuleType) else _module_of(thing)
    if is_own(module):
        by_itself = module in home and not isinstance(thing, ModuleType)
        yield (name, text_of(thing)) if by_itself else (module, text_of_file(module))
        for code in _codes(thing.__code__) if isinstance(thing, FunctionType) else ():
            called = (each.argval for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME")
            yield from ((other, text_of_file(other)) for other in called if is_own(other))


def _module_of(thing: Any) -> str:
    return str(thing.__globals__.get("__name__") if isinstance(thing, FunctionType) else thing.__module__)


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """What a thing calls or holds, with the names that it has there; "" where it has none."""
    held: dict[str, Any] = dict(getattr(thing, "__dict__", {}))
    held.pop("_skl_callbacks", None)  # scikit-learn's, which are there while it fits
    kind = type(thing)
    is_holder = is_own(kind.__module__) or hasattr(kind, "get_params") or kind.__module__.startswith(_HOLDERS)
    yield from (("", held[name]) for name in _WRAPPED if name in held and not is_holder)
    if isinstance(thing, FunctionType):
        yield from _of_function(thing)
    elif isinstance(thing, type):
        yield from (("", part) for part in (*thing.__bases__, *held.values()) if is_own(thing.__module__))
    elif isinstance(thing, partial | MethodType | property):
        names = ("func", "args", "__func__", "__self__", "fget")
        yield from (("", part) for name in names if (part := getattr(thing, name, None)) is not None)
        yield from getattr(thing, "keywords", {}).items()
    elif isinstance(thing, dict | list | tuple):
        if len(thing) <= MOST_ITEMS:
            yield from (("", part) for part in (thing.values() if isinstance(thing, dict) else thing))
    elif is_holder:
        yield "", kind
        yield from ((f"{kind.__name__}.{name}", part) for name, part in held.items())


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Its closure and defaults, and the globals that it reads; of a function of a library what it calls alone."""
    code, names, defaults = function.__code__, function.__globals__, function.__defaults__ or ()
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    parts = {name: cell.cell_contents for name, cell in cells if cell != CellType()}
    if not is_own(_module_of(function)):
        yield from ((name, part) for name, part in parts.items() if callable(part) or type(part) is tuple)
        return
    yield from parts.items()
    yield from zip(code.co_varnames[code.co_argcount - len(defaults) :], defaults, strict=False)
    yield from (function.__kwdefaults__ or {}).items()
    for each in _codes(code):
        own = [it for name in each.co_names if isinstance(it := names.get(name), ModuleType) and is_own(it.__name__)]
        yield from ((n, there[n]) for there in (names, *map(vars, own)) for n in each.co_names if n in there)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A code with those of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _name_of(thing: Any, otherwise: str) -> str:
    """That of a function or class; of a method that of its class."""
    name = getattr(thing, "__qualname__", None)
    if not isinstance(name, str) or name.endswith("<lambda>"):
        return otherwise
    *outer, own = name.split(".")
    return outer[-1] if outer and outer[-1] != "<locals>" and isinstance(thing, FunctionType) else own
