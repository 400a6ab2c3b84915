"""Digests of the source of what a study calls of its user's own code, so that one that continues can say what changed.

A function or class counts with its text, a module beside that of the objective with its file; comments, docstrings and
blank lines do not. All Pythons find the same. What has no source (typed in, built in, in C) is known by its name only.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import sys
import sysconfig
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

MOST_ITEMS = 1000  # of a list or dict; longer ones are data
MOST_THINGS = 10_000  # that are looked at
IS = "= "  # how a value begins, which is its own digest
MAY_BE_TIME = 1e9  # numbers from here on may be times, which differ each time
_BEGINS = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)  # a text after it is a docstring
_HOLDERS = ("sklearn.", "argparse", "types")  # of modules whose objects are walked
_STDLIB = Path(sysconfig.get_path("stdlib"))


class _Source(str):
    """A text that counts."""


def digests(called: Mapping[str, Any]) -> dict[str, str]:
    """Digests by name of the sources that `called` leads to; "" where there is none. A text in it is a source, too."""
    texts: dict[str, set[str]] = {}
    for name, thing in _walk(called):
        if isinstance(thing, _Source):
            texts.setdefault(name, set()).update([thing] if thing else [])
    joined = {name: "\n".join(sorted(some)) for name, some in sorted(texts.items())}
    return {name: text if text.startswith(IS) else _digest(text) if text else "" for name, text in joined.items()}


def values_read(called: Mapping[str, Any]) -> dict[str, str]:
    """Plain values that functions read: of globals, closures, defaults, arguments, attributes; for `digests`."""
    found: dict[str, set[str]] = {}
    read = set[str]()
    for name, thing in _walk(called):
        if isinstance(thing, FunctionType):
            waiting = [thing.__code__]
            for code in waiting:
                read.update(code.co_names, code.co_varnames, code.co_freevars)
                waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        elif text := _plain(thing):
            found.setdefault(name, set()).add(text)
    read -= {"n_trials", "timeout"}  # of the study
    found = {name: some for name, some in found.items() if name.rpartition(".")[2] in read}
    return {name: IS + " and ".join(sorted(some)) for name, some in found.items()}


def _walk(called: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What `called` leads to, by name."""
    _file.cache_clear()  # files may have been edited
    home = {"__main__", *(getattr(thing, "__module__", None) for thing in called.values())}
    waiting = [(_name_of(it, name), _Source(it) if isinstance(it, str) else it) for name, it in called.items()]
    seen: dict[int, Any] = {}  # with the things, so that no other gets the identity of one
    while waiting and len(seen) < MOST_THINGS:
        name, thing = waiting.pop()
        yield name, thing
        if not (isinstance(thing, _Source) or _plain(thing) or id(thing) in seen):
            seen[id(thing)] = thing
            waiting += _inside(name, thing, home)


def _plain(value: Any) -> str:
    """Numbers where they are few, else a digest, as of texts; "" for what may be a time, and all else."""
    some = value if type(value) in (tuple, list) else (value,)
    if len(some) > MOST_ITEMS or not all(type(one) in (bool, int, float, str) for one in some):
        return ""
    numbers = [one for one in some if not isinstance(one, str)]
    if any(MAY_BE_TIME <= abs(one) < float("inf") for one in numbers):
        return ""
    return repr(value) if len(numbers) == len(some) <= 9 else f"#{_digest(repr(value))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def changes(theirs: Mapping[str, str], mine: Mapping[str, str]) -> list[str]:
    """Names whose sources differ, where both are known."""
    gone = [name for name in theirs if name not in mine]
    new = [name for name in mine if name not in theirs] if gone else []  # else what calls it has changed too
    return [name for name in theirs if theirs[name] and mine.get(name) not in ("", None, theirs[name])] or gone + new


def told(theirs: Mapping[str, str], mine: Mapping[str, str], name: str) -> str:
    """A name that has changed, with the numbers that it stood and stands for."""
    was, now = theirs.get(name, ""), mine.get(name, "")
    return f"{name} (was {was[2:]}, is {now[2:]})" if was[:2] == now[:2] == IS and "#" not in was + now else name


def counting(source: str) -> str:
    """What counts of a text in Python; all of another one."""
    lines = textwrap.dedent(source).splitlines(keepends=True)
    try:
        tokens = [*tokenize.generate_tokens(iter(lines).__next__)]
    except (SyntaxError, tokenize.TokenError):
        return source
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    tokens = [token for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL)]
    before = [tokenize.NEWLINE, *(token.type for token in tokens)]
    documents = [
        token
        for kind, token, after in zip(before, tokens, tokens[1:], strict=False)
        if token.type == tokenize.STRING and kind in _BEGINS and after.type == tokenize.NEWLINE
    ]
    for token in sorted((*comments, *documents), key=lambda token: token.start, reverse=True):
        (row, column), (last, end) = token.start, token.end
        rest = lines[last - 1][end:]
        lines[row - 1 : last] = [lines[row - 1][:column].rstrip() + rest, *[""] * (last - row)]
    return "".join(line for line in lines if line.strip())


def _inside(name: str, thing: Any, home: set[Any]) -> Iterator[tuple[str, Any]]:
    """The source of a thing, and what it calls or holds, by name."""
    kind = thing if isinstance(thing, type) else type(thing)
    parts: dict[str, Any] = dict(getattr(thing, "__dict__", {}))
    parts.pop("_skl_callbacks", None)  # scikit-learn's, which are there while it fits
    held: list[Any] = [parts.get(key) for key in ("__wrapped__", "py_func", "func")]  # of decorators
    if isinstance(thing, FunctionType):
        code, given = thing.__code__, thing.__defaults__ or ()
        cells = zip(code.co_freevars, thing.__closure__ or (), strict=True)
        inner = {key: cell.cell_contents for key, cell in cells if cell != CellType()}
        if own := is_own(module := str(thing.__globals__.get("__name__"))):
            inner |= zip(code.co_varnames[code.co_argcount - len(given) :], given, strict=False)
            inner |= thing.__kwdefaults__ or {}
        yield from (
            (_name_of(part, key), part) for key, part in inner.items() if own or callable(part) or type(part) is tuple
        )
        if own:
            yield (name, text_of(thing)) if module in home else (module, _file(module))
            yield from _read_by(thing.__code__, thing.__globals__)
    elif isinstance(thing, ModuleType):
        if is_own(thing.__name__):
            yield thing.__name__, _file(thing.__name__)
    elif isinstance(thing, type):
        if is_own(module := kind.__module__):
            yield (name, text_of(thing)) if module in home else (module, _file(module))
            held += [*kind.__bases__, *parts.values()]
    elif isinstance(thing, partial | MethodType | property):
        held += [getattr(thing, key, None) for key in ("func", "args", "__func__", "__self__", "fget")]
        yield from ((_name_of(part, key), part) for key, part in getattr(thing, "keywords", {}).items())
    elif isinstance(thing, dict | list | tuple):
        held += (thing.values() if isinstance(thing, dict) else thing) if len(thing) <= MOST_ITEMS else []
    elif is_own(kind.__module__) or hasattr(kind, "get_params") or kind.__module__.startswith(_HOLDERS):
        held = [kind]
        yield from ((_name_of(value, f"{kind.__name__}.{key}"), value) for key, value in parts.items())
    yield from ((_name_of(part, name), part) for part in held)


def _read_by(code: CodeType, names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The global names in a function, and the own modules that it imports when it is called."""
    own = [it for name in code.co_names if isinstance(it := names.get(name), ModuleType) and is_own(it.__name__)]
    for there in (names, *map(vars, own)):
        yield from ((_name_of(there[name], name), there[name]) for name in code.co_names if name in there)
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME" and is_own(instruction.argval):
            yield instruction.argval, _file(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _read_by(constant, names)


def text_of(thing: Any) -> _Source:
    """The text of a function or class; of a lambda its body alone, since a call may be around it."""
    with suppress(OSError, TypeError, ValueError, SyntaxError, tokenize.TokenError):
        if getattr(thing, "__name__", "") != "<lambda>":
            return _Source(counting(inspect.getsource(thing)))
        places: list[Any] = [place for place in thing.__code__.co_positions() if place[2] != place[3]]
        first, last = min((place[0], place[2]) for place in places), max((place[1], place[3]) for place in places)
        lines = [line.encode() for line in inspect.findsource(thing)[0][first[0] - 1 : last[0]]]
        lines[-1] = lines[-1][: last[1]]
        lines[0] = lines[0][first[1] :]
        return _Source(counting(f"({b''.join(lines).decode()})"))
    return _Source("")


@cache
def _file(module: str) -> _Source:
    """The text of a module's file, which is not imported for this."""
    top, *rest = module.split(".")
    spec = find_spec(top) if module != "__main__" else None
    file = Path((spec and spec.origin) or ".")
    file = file.parent.joinpath(*rest).with_suffix(".py") if rest else file
    return _Source(counting(file.read_text(errors="replace")) if file.suffix == ".py" and file.is_file() else "")


def _name_of(thing: Any, otherwise: str) -> str:
    """That of a function or class; of a method that of its class."""
    name = getattr(thing, "__qualname__", None)
    if not isinstance(name, str) or name.endswith("<lambda>"):
        return otherwise
    *outer, own = name.split(".")
    return outer[-1] if outer and outer[-1] != "<locals>" and isinstance(thing, FunctionType) else own


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
