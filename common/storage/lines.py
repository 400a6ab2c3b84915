"""Lines of a journal: checksums, what a line of a trial says, and trials that are kept as the text of their lines.

A study that goes on knows up to millions of trials and looks at few of them, mostly at their parameters alone. So a
line is checked when the journal is read, and parsed when somebody asks. A line as this program writes it is checked by
one regular expression, which costs a third of parsing it; any other line is parsed at once.
"""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from common.errors import UsageError
from common.trial import Parameter, Place, Result, Trial, Used

MANY = 10_000  # lines that are read at a time
_DAMAGED = (  # what reading a file of arrays may raise
    OSError, ValueError, KeyError, EOFError, MemoryError, NotImplementedError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
_CHECKED = re.compile(rb',"crc":"([0-9a-f]{8})"\}\Z')  # how a line ends that has a checksum


def _form() -> re.Pattern[bytes]:
    """A line of a trial as `common.storage.journal` writes it; no text that matches can fail to be read later.

    Groups: the key, all between the key and the checksum, the checksum. Numbers are short enough to be finite, texts
    are ASCII without escapes, but for an error's line breaks and quotes.
    """
    # Repeated characters are matched possessively: it is never of use to go back to fewer of them.
    plain = rb'[^"\\\x00-\x1f\x7f-\xff]'
    text = rb'"%s*+"' % plain
    whole = rb"-?+(?!0[0-9])[0-9]{1,21}+"
    number = rb"%s(?:\.[0-9]{1,25}+|)(?:e[+-]?+[0-9]{1,2}+|)" % whole
    parameter = rb"%s:(?:%s|%s|true|false)" % (text, number, text)
    value = rb'%s:(?:%s|"-?inf")' % (text, number)
    used = rb"(?:null|%s)" % number

    def several(part: bytes) -> bytes:
        return rb"(?:%s(?:,%s)*|)" % (part, part)

    members = [
        rb'"params":\{%s\}' % several(parameter),
        rb'"values":\{%s\}' % several(value),
        rb'"arrays":(?:null|\[%s\])' % several(text),
        rb'"seconds":%s(?:,"ended":%s|)' % (number, number),
        rb'(?:"used":\[%s(?:,%s){1,3}\],|)(?:"compiled":%s,|)' % (used, used, number)
        + rb'"place":\[%s,%s,%s,%s\]' % (text, whole, whole, text),
        rb'"attempt":%s' % whole,
        rb'"error":(?:null|"(?:%s++|\\["\\/bfnrt])*")' % plain,
    ]
    return re.compile(rb'\{"key":"(%s{1,200}+)",(%s),"crc":"([0-9a-f]{8})"\}' % (plain, b",".join(members)))


_FORM = _form()
_PARAMS, _VALUES = b'"params":', b',"values":{'  # how the text of a line begins that matched, and goes on
_decode = json.JSONDecoder().raw_decode


class StoredArrays(Mapping[str, np.ndarray]):
    """The arrays of one trial, read from their file each time one is asked for."""

    def __init__(self, path: Path, names: Sequence[str]):
        self._path, self._names = path, tuple(names)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        try:
            with np.load(self._path, allow_pickle=False) as file:
                array = file[name]
            if not isinstance(array, np.ndarray):  # NumPy hands out other members of the archive as bytes
                raise ValueError(f"its {name} is not an array")
            return array
        except _DAMAGED as error:
            repair = f"restore it, or run python -m common.status --repair {self._path.parent.parent}"
            raise UsageError(f"{self._path} is damaged ({error}): {repair}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def array_path(folder: Path, key: str) -> Path:
    """The file of the arrays of the trial `key`."""
    return folder / "arrays" / (quote(key, safe="") + ".npz")


class TrialLines:
    """The trials of a journal by key, each as the text of its last line, which takes less memory.

    Args:
        folder: of the study, for the arrays.
    """

    def __init__(self, folder: Path):
        self.texts: dict[str, bytes] = {}  # a whole line, or all between its key and its checksum
        self._folder = folder
        self._places: dict[tuple[Any, ...], Place] = {}

    def take(self, lines: Sequence[bytes]) -> Iterator[int]:
        """Keep lines of trials that are as this program writes them, with their checksums.

        Yields:
            The places of all others among them, each before what comes after it is kept.
        """
        checksum, texts = zlib.crc32, self.texts
        for place, found in enumerate(map(_FORM.fullmatch, lines)):
            if found is not None:
                key, text, crc = found.groups()
                if int(crc, 16) == checksum(found.string[:-18]):
                    texts[key.decode()] = text
                    continue
            yield place

    def take_parsed(self, record: Mapping[str, Any], line: bytes) -> None:
        """Keep a line of a trial of any other form, which says `record`. Raises what reading it raises."""
        trial = Trial(record["key"], record["params"])
        self._result(trial.key, record)
        self.texts[trial.key] = line

    def result(self, key: str) -> Result:
        """Its result. Raises KeyError."""
        return self._result(key, json.loads(_whole(self.texts[key])))

    def all(self) -> tuple[dict[str, Trial], dict[str, Result]]:
        """Every trial and result. Parsed many together, equal names are one object in memory."""
        trials, results = {}, {}
        items = iter(self.texts.items())
        while some := dict(islice(items, MANY)):
            records = json.loads(b"[%s]" % b",".join(map(_whole, some.values())))
            for key, record in zip(some, records, strict=True):
                trials[key], results[key] = Trial(key, record["params"]), self._result(key, record)
        return trials, results

    def _result(self, key: str, record: Mapping[str, Any]) -> Result:
        values, error, where = record["values"], record["error"], tuple(record["place"])
        arrays: Mapping[str, np.ndarray] = {}
        if record["arrays"] is not None:
            arrays = StoredArrays(array_path(self._folder, key), record["arrays"])
        place = self._places.get(where) or self._places.setdefault(where, place_of(where))
        if not isinstance(error, str | None):
            raise TypeError("its error is not text")
        return Result(
            key,
            values if all(type(v) is float for v in values.values()) else {n: float(v) for n, v in values.items()},
            arrays,
            error,
            seconds=float(record["seconds"]),
            ended=float(record.get("ended", 0.0)),
            used=_used(*record.get("used", ()), compiled=record.get("compiled")),
            place=place,
            attempt=int(record["attempt"]),
        )


class StoredTrials(Mapping[str, Trial]):
    """The trials of lines, made when they are looked at."""

    def __init__(self, lines: TrialLines):
        self._texts = lines.texts

    def __getitem__(self, key: str) -> Trial:
        return trial_of(key, self._texts[key])

    def __contains__(self, key: object) -> bool:
        return key in self._texts

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def params(self, keys: Sequence[str]) -> Iterator[Mapping[str, Parameter] | None]:
        """As `known_params`; many are parsed together."""
        for start in range(0, len(keys), MANY):
            texts = [self._texts.get(key) for key in keys[start : start + MANY]]
            params = [b"null" if text is None else _params(text) for text in texts]
            yield from json.loads(b"[%s]" % b",".join(params))


def known_params(trials: Mapping[str, Trial], keys: Sequence[str]) -> Iterator[Mapping[str, Parameter] | None]:
    """The parameters of the trial of each of these keys, None where there is none."""
    if isinstance(trials, StoredTrials):
        return trials.params(keys)
    return (trials[key].params if key in trials else None for key in keys)


class StoredResults(MutableMapping[str, Result]):
    """The results of lines, made when they are looked at, and others that are added; a copy shares the lines."""

    def __init__(self, lines: TrialLines, changed: Mapping[str, Result | None] | None = None):
        self.lines = lines
        self._changed: dict[str, Result | None] = dict(changed or {})  # None: no longer there

    def __copy__(self) -> StoredResults:
        return StoredResults(self.lines, self._changed)

    def __getitem__(self, key: str) -> Result:
        if key not in self._changed:
            return self.lines.result(key)
        result = self._changed[key]
        if result is None:
            raise KeyError(key)
        return result

    def __contains__(self, key: object) -> bool:
        return self._changed[key] is not None if key in self._changed else key in self.lines.texts

    def __setitem__(self, key: str, result: Result) -> None:
        self._changed[key] = result

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._changed[key] = None

    def __iter__(self) -> Iterator[str]:
        texts = self.lines.texts
        yield from (key for key in texts if self._changed.get(key, True) is not None)
        yield from (key for key, result in self._changed.items() if result is not None and key not in texts)

    def __len__(self) -> int:
        texts = self.lines.texts
        return len(texts) + sum((result is not None) - (key in texts) for key, result in self._changed.items())


def with_checksum(line: bytes) -> bytes:
    """A line, a JSON object without its newline, with the CRC-32 of all before it as its last member, "crc"."""
    return line if has_checksum(line) else line[:-1] + b',"crc":"%08x"}' % zlib.crc32(line[:-1])


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
    record = json.loads(line.decode())
    if checksum is not None:
        del record["crc"]
    if b"\\ud" in line or b"\\uD" in line:
        json.dumps(record, ensure_ascii=False).encode()  # half a surrogate pair could not be printed
    return record


def place_of(where: Sequence[Any]) -> Place:
    """The place of host, rank, slot, device. Raises TypeError for anything else."""
    if [type(part) for part in where] != [str, int, int, str]:
        raise TypeError("its place is not host, rank, slot, device")
    return Place(*where)


def _used(
    cpu_seconds: float | None = None,
    peak_bytes: int | None = None,
    gpu: float | None = None,
    gpu_bytes: int | None = None,
    *,
    compiled: float | None = None,
) -> Used:
    used = Used(cpu_seconds, peak_bytes, gpu, gpu_bytes, compiled)
    if not all(part is None or type(part) in (int, float) for part in used):
        raise TypeError("what it used is not a number")
    return used


def trial_of(key: str, text: bytes) -> Trial:
    """The trial of that key, of what `TrialLines` keeps of its line."""
    if not text.startswith(_PARAMS):
        return Trial(key, json.loads(text)["params"])
    trial = object.__new__(Trial)  # without the checks of `Trial`, which the text has passed
    object.__setattr__(trial, "key", key)
    object.__setattr__(trial, "params", _decode(text.decode(), len(_PARAMS))[0])
    return trial


def _params(text: bytes) -> bytes:
    """The parameters as JSON."""
    if text.startswith(_PARAMS):
        return text[len(_PARAMS) : text.index(_VALUES)]
    return json.dumps(json.loads(text)["params"]).encode()


def _whole(text: bytes) -> bytes:
    """A JSON object with what is kept of a line."""
    return b"{%s}" % text if text.startswith(_PARAMS) else text
