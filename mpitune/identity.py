"""What a value is: its type and whole content. Results folders know values by it, as texts of two may be equal.

Numbers count by type and bits, arrays by dtype, shape and bytes, containers by their parts, functions and classes by
their names and what they hold (`mpitune.source` has their code), classes that their module has under this name by the
name alone, lambdas and functions of functions by their code as well, all else by what its pickle is made of. Order
counts in dicts, but neither in sets nor among attributes. It is the same in each process, and a thing without such a
content, as an open file, is refused where results are kept.

    identity(value)     32 digits that only an equal value has
    header_text(value)  a text for headers: the repr where that says all, else its begin and 12 of these digits
    label_of(value)     the same for trials, where numbers and texts stand for themselves
"""

from __future__ import annotations

import copyreg
import random
import re
import struct
import sys
from ast import literal_eval
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import Enum
from hashlib import blake2b
from inspect import ismemberdescriptor
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from mpitune.errors import UsageError, utf8
from mpitune.source import is_own, text_of
from mpitune.trial import Parameter

LONGEST_SHOWN = 200  # characters of a value that stand in a text
COPIED_BYTES = 1 << 26  # bytes of an array that are copied at a time
NO_IDENTITY = " #?"  # how the text of a thing ends that has no identity
# What is no part of a thing's value: of estimators, which hear and note the version, and of sparse matrices.
BESIDES = {"_abc_impl", "_skl_callbacks", "_sklearn_version", "_has_sorted_indices", "_has_canonical_format"}
# Where a decorator has its function, as its pickle does not: numba's have another name in each process.
_HELD = {f"builtins.{kind}method": "__func__" for kind in ("static", "class")}
_HELD |= {"functools._lru_cache_wrapper": "__wrapped__", "functools.cached_property": "func"}
_GLOBAL = {id(np.random.mtrand._rand): "numpy.random", id(random._inst): "random"}
# A text that `said` may write of what is no text, but for brackets.
_RESERVED = re.compile(r"None|nan|-?inf|np\.\w+\(.*\)|b?['\"].*|.* #(\?|[0-9a-f]{12})", re.S)
# Of a repr: what stands in braces without a colon, but in quotes or <Colour.RED: 1>.
_SET = re.compile(r"""\{(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|<[^<>{}]*>|[^{}:'"<>])+\}""")


def identity(value: Any, code: bool = True) -> str:
    """A digest that only a value of this type and content has, in any process. Raises UsageError where it has none.

    code: whether that of lambdas and functions of functions counts; False where `Experiment.called` tells it.
    """
    try:
        return blake2b(_Digester(code).of(value), digest_size=16).hexdigest()
    except Exception as error:  # whatever the thing's own pickling raises
        why = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_SHOWN]
        raise UsageError(
            f"{_text(value)[:LONGEST_SHOWN]} has no content that another process could find again ({why}), so no "
            "results of it can be kept: give a text or a number, and make of it what it stands for where it is used"
        ) from error


def label_of(value: Any) -> Parameter:
    """What stands for a value in a trial: itself where a journal can hold it, else a text that no other value has."""
    if type(value) in (int, bool, float) and abs(value) <= sys.float_info.max:
        return value
    return value if type(value) is str and not _may_be_said(value) else header_text(value)


def header_text(value: Any, code: bool = True) -> str:
    """A text that no other value has; one that ends with NO_IDENTITY stands for a thing that has no identity."""
    if isinstance(value, np.generic) and value.dtype.char in "?bhilqBHILQefd" and value == value:
        return f"np.{value.dtype.name}({value.item()!r})"  # whatever NumPy's options are
    if _says_all(value) and len(text := repr(value)) <= LONGEST_SHOWN:
        return text
    try:
        mark = identity(value, code)[:12]
    except UsageError:
        return _text(value)[:LONGEST_SHOWN] + NO_IDENTITY
    return f"{_text(value)[:LONGEST_SHOWN]} #{mark}"


def require_identity(*values: Any) -> None:
    """Raise UsageError for the first value whose results could not be kept."""
    for value in values:
        if not _says_all(value):
            identity(value)


def for_people(label: Any) -> Any:
    """A label without its digits."""
    return re.sub(r" #(\?|[0-9a-f]{12})$", "", label) if isinstance(label, str) else label


def texts_of(labels: Iterable[Any]) -> dict[Any, Any]:
    """What stands for labels in a table: digits stay where two would have one text."""
    texts = {label: for_people(label) for label in labels if isinstance(label, str)}
    times = Counter(texts.values())
    return {label: text if times[text] == 1 else label for label, text in texts.items()}


def _says_all(value: Any, depth: int = 9) -> bool:
    """Whether the repr of a value is that of no other."""
    kind = type(value)
    if kind in (list, tuple, dict):
        parts = [*value, *(value.values() if kind is dict else ())]
        return depth > 0 and len(parts) <= LONGEST_SHOWN and all(_says_all(part, depth - 1) for part in parts)
    if kind is float:
        return value == value or struct.pack(">d", value) == struct.pack(">d", float("nan"))
    if kind is int:
        return value.bit_length() < 4 * LONGEST_SHOWN  # Python refuses to write a very long one
    return kind in (bool, str, bytes, type(None)) or (kind is complex and value == value)


def _may_be_said(text: str) -> bool:
    """Whether `said` may write this text of another value; also of a text that is no UTF-8, which no journal holds."""
    if utf8(text) != text or _RESERVED.fullmatch(text):
        return True
    with suppress(ValueError):
        return repr(complex(text)) == text
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        plain = re.sub(r"\b(?:inf|nan)(j?)\b", r"1\1", text)  # the literals of what repr writes so
        return text.startswith(("(", "[", "{")) and len(text) <= LONGEST_SHOWN and literal_eval(plain) is not None
    return False


def _text(value: Any) -> str:
    """A value for people; the same in each process."""
    with suppress(Exception):  # of its own `__repr__`
        name = getattr(value, "__name__", None)
        if isinstance(name, str):
            return name
        if hasattr(value, "shape") and not isinstance(value, np.ndarray):  # pandas writes as wide as the terminal is
            return f"{type(value).__name__} of shape {tuple(value.shape)}"
        return " ".join(without_address(repr(value)).split())
    return f"a {type(value).__name__}"


class _Digester:
    """Goes through a value. The parts that hold others have digests, so one that is there twice is walked once."""

    def __init__(self, code: bool) -> None:
        self._code = code
        self._known: dict[int, tuple[Any, bytes]] = {}  # with the things, so that no other gets the place of one
        self._open: dict[int, int] = {}  # the things around, by their depth
        self._up = sys.maxsize  # the least depth that something refers back to

    def of(self, value: Any) -> bytes:
        """What only an equal value has."""
        if (plain := _plain(value)) is not None:
            return plain
        place = id(value)
        if place in self._known:
            return self._known[place][1]
        if place in self._open:  # it holds itself
            self._up = min(self._up, self._open[place])
            return b"^%d" % (len(self._open) - self._open[place])
        depth = self._open[place] = len(self._open)
        around, self._up = self._up, sys.maxsize
        parts = [self.of(part) for part in _parts(value, self._code)]
        if isinstance(value, set | frozenset):
            parts.sort()
        made = b"#" + blake2b(b"".join(b"%d:%b" % (len(part), part) for part in parts), digest_size=16).digest()
        del self._open[place]
        if self._up >= depth:  # it says nothing of what is around
            self._known[place] = value, made
            self._up = sys.maxsize
        self._up = min(self._up, around)
        return made


def _plain(value: Any) -> bytes | None:
    """A value that has no parts."""
    kind = type(value)
    if kind is str:
        return b"s" + value.encode("utf-8", "surrogatepass")
    if kind is int:
        return b"i%x" % value
    if kind is float:
        return b"f" + struct.pack(">d", value)
    if kind is complex:
        return b"z" + struct.pack(">dd", value.real, value.imag)
    if kind is bytes:
        return b"b" + value
    return b"c" + repr(value).encode() if kind is bool or value is None or value is ... else None


def _parts(value: Any, code: bool) -> Iterable[Any]:
    """What a value consists of, the name of its type first."""
    kind = type(value)
    name = _name(kind)
    if place := _GLOBAL.get(id(value)):
        return ["global", place]
    if kind in (list, tuple) or isinstance(value, set | frozenset):
        return [name, *value]
    if kind is dict:
        return [name, *(part for pair in value.items() for part in pair)]
    if isinstance(value, np.generic) or kind in (np.ndarray, np.memmap):
        return ["scalar" if isinstance(value, np.generic) else "array", *_of_array(np.asarray(value))]
    if isinstance(value, type):
        return ["class", _name(value), *_of_class(value)]
    if isinstance(value, FunctionType):
        return _of_function(value, code)
    if isinstance(value, CodeType):
        return [name, value.co_code, value.co_names, value.co_freevars, value.co_consts]
    if isinstance(value, MethodType):
        return [name, value.__func__, value.__self__]
    if isinstance(value, property):
        return [name, value.fget, value.fset, value.fdel]
    if isinstance(value, BuiltinFunctionType):
        of = value.__self__
        return [name, value.__qualname__, value.__module__ if of is None or isinstance(of, ModuleType) else of]
    if isinstance(value, ModuleType):
        return [name, value.__name__]
    if isinstance(value, Enum):
        return [name, value.name, value._value_]
    if isinstance(value, PurePath):
        return ["path", kind.__name__, str(value)]  # each Python has another module of them
    held = "py_func" if kind.__module__.startswith("numba.") else _HELD.get(name)
    if held and hasattr(value, held):
        return [name, getattr(value, held)]
    return [name, *(_of_library(value) or _of_pickle(value))]


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _of_array(array: np.ndarray) -> list[Any]:
    about: list[Any] = [array.dtype.str, array.shape]
    if array.dtype.names:  # between them may be bytes that mean nothing, as in those of long doubles
        return [*about, *(part for field in array.dtype.names for part in (field, np.asarray(array[field])))]
    if array.dtype.hasobject or array.dtype.char in "gGT":
        items = array.ravel().tolist() if array.dtype.hasobject else map(str, array.ravel())
        return [*about, *items]
    digest, rows = blake2b(digest_size=16), array.reshape(1) if not array.ndim else array
    step = max(1, COPIED_BYTES // max(1, rows[:1].nbytes))
    for begin in range(0, len(rows), step):
        digest.update(rows[begin : begin + step].tobytes())
    return [*about, digest.digest()]


def _named(thing: Any) -> Any:
    """What its module has under its name."""
    there: Any = sys.modules.get(thing.__module__)
    for part in thing.__qualname__.split("."):
        there = getattr(there, part, None)
    return there


def _of_class(kind: type) -> list[Any]:
    """Of an own class of a function, or without a name in its module: what it is made of, but for what Python notes."""
    if not is_own(kind.__module__) or _named(kind) is not None or issubclass(kind, Enum):
        return []
    held = {n: it for n, it in vars(kind).items() if isinstance(it, FunctionType) or not n.endswith("__")}
    return [kind.__bases__, *_attributes({n: it for n, it in held.items() if not ismemberdescriptor(it)})]


def _of_function(function: FunctionType, counts: bool) -> list[Any]:
    """One of a library is known by its name, one of the user's own also by what it holds."""
    module, name = function.__module__, function.__qualname__
    if not is_own(module) and _named(function) is function:
        return ["function", module, name]
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    holds = [function.__defaults__, function.__kwdefaults__, cells, *_attributes(vars(function))]
    code = function.__code__
    if counts and ("<locals>" in name or name.endswith("<lambda>")):
        holds += [text_of(function) or code, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]
    return ["function", module, name, *holds]


def _of_library(value: Any) -> list[Any] | None:
    """Of what libraries pickle otherwise than by content: by how it came about, what it has cached, or by a file."""
    kinds = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(value).__mro__}
    if "pandas.DataFrame" in kinds:
        columns = (value.iloc[:, n].array for n in range(value.shape[1]))
        return [value.columns, value.index, value.attrs, *columns]
    if "pandas.Series" in kinds:
        return [value.name, value.index, value.attrs, value.array]
    if "pandas.Index" in kinds:
        levels = [value.get_level_values(n) for n in range(value.nlevels)] if value.nlevels > 1 else [value.array]
        return [list(value.names), str(getattr(value, "freq", None)), *levels]
    if "pandas.Categorical" in kinds:
        return [value.codes, value.categories, value.ordered]
    if "pandas.ExtensionArray" in kinds:
        held = getattr(value, "_ndarray", None)  # of what is one of NumPy's, or is made of one
        return [str(value.dtype), value.to_numpy(dtype=object) if held is None else held]
    if "torch.Tensor" in kinds and str(value.layout) == "torch.strided":
        here = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        content = here.view(sys.modules["torch"].uint8).numpy()
        return [str(value.dtype), tuple(value.shape), value.requires_grad, content]
    return None


def _of_pickle(value: Any) -> list[Any]:
    """What its pickle is made of."""
    reducer = copyreg.dispatch_table.get(type(value))
    reduced = value.__reduce_ex__(4) if reducer is None else reducer(value)
    if isinstance(reduced, str):
        return [reduced, getattr(value, "__module__", None)]
    function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    parts = [function, arguments, list(items or ()), [part for pair in pairs or () for part in pair]]
    for some in state if isinstance(state, tuple) and len(state) == 2 else (state,):  # attributes, and those of slots
        parts += _attributes(some) if isinstance(some, dict) else [some]
    return parts


def _attributes(named: Mapping[Any, Any]) -> list[Any]:
    known = sorted((pair for pair in named.items() if pair[0] not in BESIDES), key=lambda pair: str(pair[0]))
    return [part for pair in known for part in pair]


def without_address(text: str) -> str:
    """A repr without what differs between processes: places in memory, and sets, which are written in any order."""
    text, known = re.sub(r" at 0x[0-9a-fA-F]+", "", text), ""  # NumPy writes it in capitals
    while text != known:  # as one set may be in another
        text, known = _SET.sub("<set>", text), text
    return text
