"""Lines of a journal: checksums, what a line of a trial says, and trials that are kept as the text of their lines.

A study that goes on knows up to millions of trials and looks at few of them, mostly at their parameters alone. So a
line that begins and ends as this program writes it, with the checksum of its content, is kept as text and parsed when
somebody asks. Any other line is parsed at once. The types of all that a line says are checked where it is parsed, and
nowhere else: readers rely on them.
"""

from __future__ import annotations

import json
import math
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, repeat
from pathlib import Path
from typing import IO, Any, NoReturn
from urllib.parse import quote

import numpy as np

from mpitune.errors import UsageError, utf8
from mpitune.storage.files import JOURNAL, regular_file
from mpitune.trial import LONGEST_KEY, Parameter, Place, Result, Trial, Used

NAME = JOURNAL
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)  # what a bad line raises
MANY = 10_000  # lines that are read at a time
_DAMAGED = (  # what reading a file of arrays may raise
    OSError, ValueError, KeyError, EOFError, MemoryError, NotImplementedError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
FARTHEST = 9e9  # seconds: no time is so long, and none so far from 1970
_LARGEST = 2**63  # no number of a machine is so large
_NUMBERS, _FLOAT = (float, int), frozenset({float})
_INFINITE = {"inf": float("inf"), "-inf": float("-inf")}  # as a journal writes them
_CHECKED = re.compile(rb',"crc":"([0-9a-f]{8})"\}\Z')  # how a line ends that has a checksum
_END = b',"crc":"%08x"}'  # this end
_END_BYTES = len(_END % 0)
_BACKSLASH, _QUOTE = b'\\"'  # numbers, which `in` finds seven times as fast as a byte string
_KEY, _PARAMS, _VALUES = b'{"key":"', b'","params":{', b',"values":{'  # how a line of a trial begins, and goes on


class StoredArrays(Mapping[str, np.ndarray]):
    """The arrays of one trial, read from their file each time one is asked for."""

    def __init__(self, path: Path, names: Sequence[str]):
        self._path, self._names = path, tuple(names)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        with self._file() as file, _member(file, name) as member:
            return np.lib.format.read_array(member, allow_pickle=False)

    def check(self) -> None:
        """Raise UsageError unless all of them can be read. Little memory is needed, however large they are."""
        with self._file() as file:
            for name in self._names:
                with _member(file, name) as member:
                    while member.read(1 << 20):
                        pass

    @contextmanager
    def _file(self) -> Iterator[zipfile.ZipFile]:
        try:
            with open(regular_file(self._path), "rb") as file, zipfile.ZipFile(file) as archive:
                yield archive
        except _DAMAGED as error:
            repair = f"restore it, or run python -m mpitune status --repair {self._path.parent.parent}"
            raise UsageError(f"{self._path} is damaged ({error}): {repair}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@contextmanager
def _member(archive: zipfile.ZipFile, name: str) -> Iterator[IO[bytes]]:
    """An array of an archive to be read, once its sizes and its header are known to be true.

    Raises:
        ValueError: it is packed, which `Journal` never does and which hides how large it is; or it is no array of
            numbers, or not of the size that its header says.
    """
    try:
        info = archive.getinfo(f"{utf8(name)}.npy")
    except KeyError:
        raise ValueError(f"its {name} is not an array") from None
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise ValueError(f"its {name} is compressed")
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
        if dtype.hasobject or math.prod(shape) * dtype.itemsize != info.file_size - member.tell():
            raise ValueError(f"the header of its {name} is not that of its numbers")
        member.seek(0)
        yield member


def array_path(folder: Path, key: str) -> Path:
    """The file of the arrays of the trial `key`."""
    return folder / "arrays" / (quote(key, safe="", errors="surrogatepass") + ".npz")


class TrialLines:
    """The trials of a journal by key, each as the text of its last line, which takes less memory.

    Args:
        folder: of the study, for the arrays.
    """

    def __init__(self, folder: Path):
        self.texts: dict[str, bytes] = {}  # a whole line, or all between `_PARAMS` and its checksum
        self._folder = folder
        self._places: dict[tuple[Any, ...], Place] = {}
        self._have_arrays = False  # whether any line says arrays: most studies have none

    def take(self, lines: Sequence[bytes]) -> Iterator[int]:
        """Keep lines of trials that begin and end as this program writes them, with their checksums.

        Yields:
            The places of all others among them, each before what comes after it is kept.
        """
        contents = [line[:-_END_BYTES] for line in lines]
        sounds = _sound(lines, contents)
        joined = b"".join(contents)
        self._have_arrays |= b'"arrays":[' in joined
        if all(sounds) and _BACKSLASH not in joined and self._took_all(contents):
            return
        texts, key_at = self.texts, len(_KEY)
        for place, (content, sound) in enumerate(zip(contents, sounds, strict=True)):
            beginning, _, text = content.partition(_PARAMS)
            key = beginning[key_at:]
            plain = key.isascii() and _QUOTE not in key
            if _BACKSLASH in content:  # most lines have none, which one look shows
                plain = plain and _BACKSLASH not in key
            if sound and plain and text and beginning[:key_at] == _KEY and 0 < len(key) <= LONGEST_KEY:
                texts[key.decode()] = text
            else:
                yield place

    def _took_all(self, contents: Sequence[bytes]) -> bool:
        """Keep sound lines without escapes together, which takes less time; or none, if not all are of trials."""
        parts = [content.split(_PARAMS, 1) for content in contents]
        if not parts or min(map(len, parts)) < 2:
            return False
        beginnings, texts = zip(*parts, strict=True)
        joined = b"\n" + b"\n".join(beginnings)
        keys = joined.split(b"\n" + _KEY)[1:]
        plain = joined.isascii() and joined.count(_QUOTE) == len(keys) * _KEY.count(_QUOTE)
        whole = len(keys) == len(texts) and all(keys) and all(texts)
        if not plain or not whole or len(max(keys, key=len)) > LONGEST_KEY:
            return False
        self.texts.update(zip(b"\n".join(keys).decode().split("\n"), texts, strict=True))
        return True

    def take_parsed(self, record: Mapping[str, Any], line: bytes) -> None:
        """Keep a line of a trial of any other form, which says `record`. Raises what reading it raises."""
        if type(record["key"]) is not str:
            raise TypeError("its key is not text")
        trial = _trial(record["key"], record["params"])
        self._have_arrays |= bool(self._result(trial.key, record).arrays)
        self.texts[trial.key] = line

    def result(self, key: str) -> Result:
        """Its result. Raises KeyError, or UsageError where its line is not of a trial."""
        text = self.texts[key]
        with self._readable(key):
            return self._result(key, _json(_whole(text)))

    def trial(self, key: str) -> Trial:
        """The trial of that key. Raises KeyError, or UsageError where its line is not of a trial."""
        text = self.texts[key]
        with self._readable(key):
            return _trial(key, _json(_params(text)))

    def params(self, keys: Sequence[str]) -> Iterator[Mapping[str, Parameter] | None]:
        """As `known_params`; many are parsed together."""
        for start in range(0, len(keys), MANY):
            some = keys[start : start + MANY]
            texts = [text.partition(_VALUES)[0] for text in map(self.texts.get, some, repeat(b""))]
            try:  # most times all are known, and none is kept as a whole line
                found = _json(b"[{%s]" % b",{".join(texts))
            except (ValueError, RecursionError):
                found = []
            if len(found) != len(some):
                texts = [_params(self.texts[key]) if key in self.texts else b"null" for key in some]
                found = self._together(some, texts)
            yield from found

    def keys_with_arrays(self) -> set[str]:
        """Keys of the trials that have arrays."""
        found = set()
        for key, text in self.texts.items() if self._have_arrays else ():
            if b'"arrays":null' not in text and self.result(key).arrays:
                found.add(key)
        return found

    def all(self) -> tuple[dict[str, Trial], dict[str, Result]]:
        """Every trial and result. Parsed many together, equal names are one object in memory."""
        trials, results = {}, {}
        items = iter(self.texts.items())
        while some := dict(islice(items, MANY)):
            for key, record in zip(some, self._together(list(some), list(map(_whole, some.values()))), strict=True):
                with self._readable(key):
                    trials[key], results[key] = _trial(key, record["params"]), self._result(key, record)
        return trials, results

    def _together(self, keys: Sequence[str], texts: Sequence[bytes]) -> list[Any]:
        """What these texts of JSON say."""
        try:
            if len(found := _json(b"[%s]" % b",".join(texts))) == len(keys):
                return found
        except (ValueError, RecursionError):
            pass  # one of them is damaged: it is found below
        found = []
        for key, text in zip(keys, texts, strict=True):
            with self._readable(key):
                found.append(_json(text))
        return found

    @contextmanager
    def _readable(self, key: str) -> Iterator[None]:
        try:
            yield
        except UsageError:
            raise
        except UNREADABLE as error:
            raise damaged_journal(self._folder, f"trial {key} is damaged: {error}") from error

    def _result(self, key: str, record: Mapping[str, Any]) -> Result:
        """What a line says of a trial. Raises what UNREADABLE names for a part that is not as `Journal` writes it."""
        values, error, seconds, ended = record["values"], record["error"], record["seconds"], record.get("ended", 0.0)
        attempt, names, where = record["attempt"], record["arrays"], tuple(record["place"])
        if type(values) is not dict:
            raise TypeError("its values are not named")
        if error is not None and type(error) is not str:
            raise TypeError("its error is not text")
        if type(attempt) is not int or not 1 <= attempt < _LARGEST:
            raise TypeError("its attempt is not 1 or 2")
        if type(seconds) not in _NUMBERS or not 0 <= seconds <= FARTHEST:
            raise TypeError("its seconds are not a time")
        if type(ended) not in _NUMBERS or not -FARTHEST <= ended <= FARTHEST:
            raise TypeError("what it says of its end is not a time")
        arrays: Mapping[str, np.ndarray] = {}
        if names is not None:
            if type(names) is not list or not names or not all(type(name) is str for name in names):
                raise TypeError("its arrays are not a list of names")
            arrays = StoredArrays(array_path(self._folder, key), names)
        place = self._places.get(where) or self._places.setdefault(where, place_of(where))
        return Result(
            key,
            values if _FLOAT.issuperset(map(type, values.values())) else {n: _value(n, v) for n, v in values.items()},
            arrays,
            error,
            seconds=float(seconds),
            ended=float(ended),
            used=_used(record.get("used", ()), record.get("compiled")),
            place=place,
            attempt=attempt,
        )


def with_checksum(line: bytes) -> bytes:
    """A line, a JSON object without its newline, with the CRC-32 of all before it as its last member, "crc"."""
    return line if has_checksum(line) else line[:-1] + _END % zlib.crc32(line[:-1])


def _sound(lines: Sequence[bytes], contents: Sequence[bytes]) -> list[bool]:
    """Whether each line ends with the checksum of its content; first all are compared at once, in less time."""
    ends, checksums = [line[-_END_BYTES:] for line in lines], tuple(map(zlib.crc32, contents))
    if b"".join(ends) == _END * len(ends) % checksums:
        return [True] * len(ends)
    return [end == _END % checksum for end, checksum in zip(ends, checksums, strict=True)]


def has_checksum(line: bytes) -> bool:
    """Whether a line ends as one with a checksum does."""
    return _CHECKED.search(line) is not None


def parsed(line: bytes, checked: bool) -> Any:
    """The JSON of a line without its checksum. Raises ValueError or RecursionError.

    Args:
        line: without its newline.
        checked: whether it must have a checksum; one that it has must be right in any case.
    """
    checksum = _CHECKED.search(line)
    if checksum is not None and int(checksum[1], 16) != zlib.crc32(line[: checksum.start()]):
        raise ValueError("its checksum is not that of its content")
    if checksum is None and checked:
        raise ValueError("it has no checksum")
    record = _json(line)
    if type(record) is not dict:
        raise TypeError("it is no JSON object")
    if checksum is not None:
        del record["crc"]
    return record


def _json(text: bytes) -> Any:
    """What JSON says. Half a surrogate pair in a text is kept. Raises ValueError, for NaN too, or RecursionError."""
    return _decode(text.decode())


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of a journal")


_decode = json.JSONDecoder(parse_constant=_no_number).decode


def _trial(key: str, params: Any) -> Trial:
    if type(params) is not dict:
        raise TypeError("its parameters are not named")
    return Trial(key, params)


def _value(name: str, value: Any) -> float:
    if type(value) in _NUMBERS:
        return float(value)
    if type(value) is str and value in _INFINITE:
        return _INFINITE[value]
    raise TypeError(f"its value {name} is not a number")


def place_of(where: Sequence[Any]) -> Place:
    """The place of host, rank, slot, device. Raises TypeError for anything else."""
    if [type(part) for part in where] != [str, int, int, str] or not all(0 <= n < _LARGEST for n in where[1:3]):
        raise TypeError("its place is not host, rank, slot, device")
    return Place(*where)


def _used(parts: Any, compiled: Any) -> Used:
    """The use of the machine, as the first fields of `Used` and the last one."""
    if type(parts) not in (list, tuple) or len(parts) > 4:
        raise TypeError("what it used is not a list of numbers")
    for part in (*parts, compiled):
        if part is not None and (type(part) not in _NUMBERS or not -_LARGEST < part < _LARGEST):
            raise TypeError("what it used is not a number")
    return Used(*parts, compile_seconds=compiled)  # type: ignore[misc]  # there are four at most


def damaged_journal(folder: Path, what: str) -> UsageError:
    """The message for the user of a journal in which a line cannot be used."""
    return UsageError(
        f"{folder / NAME}, {what}: run python -m mpitune status --repair {folder}, "
        "then the same command evaluates again what was lost"
    )


def _params(text: bytes) -> bytes:
    """The parameters as JSON, of what `TrialLines` keeps of a line."""
    if text[:1] == b"{":  # a whole line
        return json.dumps(_json(text)["params"]).encode()
    return b"{" + text[: text.find(_VALUES)]


def _whole(text: bytes) -> bytes:
    """A JSON object with what `TrialLines` keeps of a line."""
    return text if text[:1] == b"{" else b'{"params":{%s}' % text
