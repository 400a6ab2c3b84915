"""The arrays of trials: a file for each trial, read when somebody looks at an array of it."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import quote

import numpy as np

from mpitune.errors import UsageError, utf8
from mpitune.storage.files import regular_file

_DAMAGED = (  # what reading a file of arrays may raise
    OSError, ValueError, KeyError, EOFError, MemoryError, NotImplementedError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def array_path(folder: Path, key: str) -> Path:
    """The file of the arrays of the trial `key`."""
    return folder / "arrays" / (quote(key, safe="", errors="surrogatepass") + ".npz")


def lost_arrays(folder: Path, keys: Iterable[str]) -> list[str]:
    """Those of the keys whose file of arrays is not there."""
    place = folder / "arrays"
    there = set(os.listdir(place)) if place.is_dir() and os.access(place, os.R_OK | os.X_OK) else set()
    return [key for key in keys if array_path(folder, key).name not in there]


class StoredArrays(Mapping[str, np.ndarray]):
    """The arrays of one trial, read from their file each time one is asked for."""

    def __init__(self, path: Path, names: Sequence[str]):
        self._path, self._names = path, tuple(names)
        self.folder = path.parent.parent  # of the journal that names them

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        with self._file() as file, _member(file, name) as member:
            return np.lib.format.read_array(member, allow_pickle=False)

    @contextmanager
    def _file(self) -> Iterator[zipfile.ZipFile]:
        try:
            with open(regular_file(self._path), "rb") as file, zipfile.ZipFile(file) as archive:
                yield archive
        except _DAMAGED as error:
            fix = "restore it, or remove it: the same command then evaluates its trial again"
            raise UsageError(f"{self._path} is damaged ({error}): {fix}") from error

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
