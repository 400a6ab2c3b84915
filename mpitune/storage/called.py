"""Digests of what a study calls of its user's own code, so that one that continues can say what has changed.

A digest is of what really runs: the instructions of code objects. Lambdas and the cells of a notebook have these too,
and a file may have been edited since it was imported. Comments, docstrings and places in a file are no instructions.
Of one function in 500 the compiler makes another jump where lines are broken elsewhere; then one line too many is said.
All patch versions of a Python (3.11.x) make the same instructions of a source, since they read each other's .pyc files.
The next minor version makes others, so digests of two of those are not compared.
"""

from __future__ import annotations

import dis
import hashlib
import re
import sys
import sysconfig
from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

MOST_ITEMS = 1000  # of a list or dict of settings; longer ones are data
MOST_THINGS = 10_000  # that are looked at
DEEPEST = 10  # list in a list
_SCALARS = (int, float, complex, str, bytes, type(None), np.generic)
_DIRECTION = re.compile("_FORWARD|_BACKWARD(_NO_INTERRUPT)?")  # of a jump
_NO_OPERATION = ("NOP", "CACHE", "EXTENDED_ARG", "RESUME")
_DECORATED = ("__wrapped__", "py_func", "func")  # where a decorator keeps what it is of
_ADDED = ("__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__")
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_STDLIB = Path(sysconfig.get_path("stdlib"))


def digests(called: Mapping[str, Any]) -> dict[str, str]:
    """Digests by name, of own functions and of the plain values that they read: all that `called` leads to.

    Own is what is neither installed nor Python's: the script or notebook, and modules beside it.
    """
    texts: dict[str, list[str]] = {}
    seen: dict[int, Any] = {}  # with the things, so that no other gets the identity of one
    waiting = [(_name_of(thing, role), thing) for role, thing in called.items()]
    while waiting and len(seen) < MOST_THINGS:
        name, thing = waiting.pop()
        if _is_plain(thing):
            if thing or not isinstance(thing, dict | list | set):  # an empty one may be where a search takes notes
                texts.setdefault(name, []).append(_shown(thing))
        elif id(thing) not in seen:
            seen[id(thing)] = thing
            if _is_own_function(thing):
                texts.setdefault(name, []).append(_shown_function(thing))
            waiting += _inside(name, thing)
    return {name: f"{_PYTHON} {_hash(sorted(some))}" for name, some in sorted(texts.items())}


def changes(theirs: Mapping[str, str], mine: Mapping[str, str]) -> list[str]:
    """Names whose digests differ; none where they cannot be compared."""
    if any(digest.partition(" ")[0] != _PYTHON for digest in [*theirs.values(), *mine.values()]):
        return []
    gone = [name for name in theirs if name not in mine]
    new = [name for name in mine if name not in theirs] if gone else []  # else what calls it has changed too
    return [name for name in theirs if name in mine and theirs[name] != mine[name]] or gone + new


def is_named(name: str, names: Collection[str]) -> bool:
    """Whether a user names this: by its own name, or by that of its class."""
    return name in names or name.partition(".")[0] in names


def digest_of_program(path: Path) -> str:
    """A text that differs where a program does; comments do not count in one of Python."""
    content = path.read_bytes()
    try:
        return _hash(_shown_code(compile(content, "", "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return _hash([repr(content)])


def _inside(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """What a thing calls or reads, by name."""
    kind = thing if isinstance(thing, type) else type(thing)
    own = _is_own(kind.__module__)
    if isinstance(thing, FunctionType):
        yield from _read_by(thing)
    elif isinstance(thing, partial):
        yield _name_of(thing.func, name), thing.func
        yield from ((f"{name}[{key}]", value) for key, value in [*enumerate(thing.args), *thing.keywords.items()])
    elif isinstance(thing, MethodType):
        yield _name_of(thing.__self__, name), thing.__self__
    elif kind is thing:
        if own:
            yield from ((base.__name__, base) for base in kind.__bases__)
            yield from ((f"{kind.__name__}.{part}", value) for part, value in _members(kind))
        return
    elif isinstance(thing, dict | list | tuple):
        values = list(thing.values() if isinstance(thing, dict) else thing) if len(thing) <= MOST_ITEMS else []
        yield from ((_name_of(value, name), value) for value in values if not _is_plain(value))
    elif own or hasattr(thing, "get_params") or kind.__module__.startswith("sklearn."):
        yield kind.__name__, kind
        parts = getattr(thing, "__dict__", {})
        for part, value in parts.items():
            if part != "_skl_callbacks" and (own or not _is_plain(value)):  # scikit-learn's, which others may replace
                yield _name_of(value, f"{kind.__name__}.{part}"), value
        return
    if isinstance(thing, property):
        yield name, thing.fget
    elif isinstance(thing, staticmethod | classmethod | MethodType):
        yield name, thing.__func__
    else:  # not by getattr: there are things that have all attributes
        parts = getattr(thing, "__dict__", {})
        yield from ((name, parts[key]) for key in _DECORATED if callable(parts.get(key)))


def _read_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The defaults of a function, what it has closed over, and the global names in it; of another's, no globals."""
    code = function.__code__
    names = dict.fromkeys(_names_in(code))
    read = dict(zip(code.co_freevars, map(_content, function.__closure__ or ()), strict=True))
    if _is_own_function(function):
        read |= {name: function.__globals__[name] for name in names if name in function.__globals__}
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        yield from ((_name_of(value, function.__name__), value) for value in defaults if not _is_plain(value))
        yield from _imported_by(code)
    for name, value in read.items():
        if isinstance(value, SimpleNamespace | Namespace) or (
            isinstance(value, ModuleType) and _is_own(value.__name__)
        ):
            yield from ((f"{name}.{part}", vars(value)[part]) for part in names if part in vars(value))
        else:
            yield name, value


def _imported_by(code: CodeType) -> Iterator[tuple[str, Any]]:
    """Own modules that a function imports when it is called, each as a whole: it is not imported for this."""
    for part in _codes(code):
        for instruction in dis.get_instructions(part):
            if instruction.opname == "IMPORT_NAME":
                top, *rest = str(instruction.argval).split(".")
                spec = find_spec(top) if _is_own(top) and top != "__main__" else None
                file = Path((spec and spec.origin) or ".")
                file = file.parent.joinpath(*rest).with_suffix(".py") if rest else file
                if file.suffix == ".py" and file.is_file():
                    yield str(instruction.argval), digest_of_program(file)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """The methods of a class, and its values; those that Python or a dataclass has added are neither."""
    for name, value in vars(kind).items():
        if not name.startswith("__") or (isinstance(value, FunctionType) and name not in _ADDED):
            yield name, value


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not set so far
        return None


def _name_of(thing: Any, otherwise: str) -> str:
    name = getattr(thing, "__name__", None)
    return name if isinstance(name, str) and name != "<lambda>" else otherwise


@cache
def _is_own(module: str | None) -> bool:
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


def _is_own_function(thing: Any) -> bool:
    """Not so what a decorator of a library has made, which may say that it is of the user's module."""
    return isinstance(thing, FunctionType) and _is_own(thing.__globals__.get("__name__"))


def _is_plain(value: Any, deep: int = DEEPEST) -> bool:
    if not isinstance(value, dict | list | tuple | set | frozenset):
        return isinstance(value, _SCALARS)
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    return deep > 0 and len(parts) <= MOST_ITEMS and all(_is_plain(part, deep - 1) for part in parts)


def _shown(value: Any) -> str:
    """A text of a plain value, or of what an instruction has: the same in each process."""
    if isinstance(value, CodeType):
        return _hash(_shown_code(value))
    if isinstance(value, set | frozenset):
        return f"{{{sorted(map(_shown, value))}}}"
    if isinstance(value, dict):
        return f"dict{sorted((_shown(key), _shown(item)) for key, item in value.items())}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}{[*map(_shown, value)]}"
    return repr(value)


def _shown_function(function: FunctionType) -> str:
    """Its code and its plain defaults."""
    defaults = [*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())]
    return _hash([*_shown_code(function.__code__), *(_shown(value) for value in defaults if _is_plain(value))])


def _shown_code(code: CodeType) -> list[str]:
    """The arguments, instructions and handlers of a code object, without its places in a file and its name."""
    bytecode = dis.Bytecode(code)
    position: dict[int, int] = {}
    kept: list[dis.Instruction] = []
    for instruction in bytecode:
        position[instruction.offset] = len(kept)
        if instruction.opname not in _NO_OPERATION:
            kept.append(instruction)
    position[len(code.co_code)] = len(kept)
    n = code.co_argcount + code.co_kwonlyargcount
    texts = [f"{code.co_argcount} {code.co_posonlyargcount} {code.co_flags & 0x0C} {code.co_varnames[:n]}"]
    jumps = {*dis.hasjrel, *dis.hasjabs}
    for instruction in kept:
        name, argument = _DIRECTION.sub("", instruction.opname), instruction.argval
        if instruction.opcode in jumps:
            argument = position[argument]
        texts.append(f"{name} {_shown(argument)}")
    handlers = getattr(bytecode, "exception_entries", ())
    for handler in handlers:
        places = (position[at] for at in (handler.start, handler.end, handler.target))
        texts.append(f"{' '.join(map(str, places))} {handler.depth}")
    return texts


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and those inside."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _names_in(code: CodeType) -> Iterator[str]:
    for part in _codes(code):
        yield from part.co_names


def _hash(texts: list[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode("utf-8", "backslashreplace")).hexdigest()[:16]
