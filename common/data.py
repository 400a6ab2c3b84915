"""Data sets of images of digits: their files, and the settings that name one.

Fetch a data set before a job whose nodes have no network:

    python mnist.py --dataset mnist --data DIR
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import math
import os
import shlex
import sys
import tempfile
import textwrap
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import numpy as np

from mpitune.errors import Exit, UsageError
from mpitune.settings import program, setting


class Source(NamedTuple):
    """Where a data set can be fetched, as four gzip files, and the MD5 of each, as torchvision knows them.

    folder: its name below the folder of the images, as torchvision has it.
    """

    folder: str
    address: str
    sums: tuple[str, str, str, str]


_FILES = {  # by array
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
SOURCES = {
    "mnist": Source(
        "MNIST",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "fashion-mnist": Source(
        "FashionMNIST",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
}
NAMES = (*SOURCES, "digits")
N_CLASSES = 10

_N_TRAIN_DIGITS = 1437
_STALLED_S = 30.0
_LARGEST = 1 << 27  # bytes of a file


@dataclass(frozen=True, kw_only=True)
class DatasetSettings:
    """Which images, and where they lie."""

    dataset: str = setting("mnist", "data set: " + ", ".join(NAMES), choices=NAMES, group="images")
    data_folder: Path = setting(
        Path("data"),
        "folder of the images in torchvision's layout; downloaded into it when absent",
        changes_results=False,
        flag="--data",
        metavar="DIR",
        group="images",
    )

    @property
    def max_pixel(self) -> int:
        """The value of a fully inked pixel of this data set."""
        return 16 if self.dataset == "digits" else 255


def load(name: str, root: Path, train_size: int | None = None, test_size: int | None = None) -> dict[str, np.ndarray]:
    """The first images of a data set: train_images and test_images uint8 (n, height, width), labels uint8 (n,).

    Args:
        name: "mnist", "fashion-mnist" (torchvision's files under `root`, fetched when they are absent), or "digits":
            the 8 x 8 images that come with scikit-learn, pixels 0..16, the first 1,437 to train and the last 360 to
            test.
        root: folder of the files.
        train_size: how many training images to keep, from the first on; None for all.
        test_size: the same of test images.

    Raises:
        UsageError: a file is not what its name says, a size is above what there is, or a data set is not there and
            cannot be downloaded.
    """
    if name in SOURCES and not all(_find(root / SOURCES[name].folder / "raw", file) for file in _FILES.values()):
        _download(name, root)
    arrays = _digits() if name == "digits" else _read(root / SOURCES[name].folder / "raw")
    for part, size in (("train", train_size), ("test", test_size)):
        n = len(arrays[f"{part}_labels"])
        if size is not None and size > n:
            raise UsageError(f"--{part}-size {size} is too large: {name} has {n} {part} images")
    sizes = {"train": train_size, "test": test_size}
    return {array: values[: sizes[array.partition("_")[0]]] for array, values in arrays.items()}


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The uint8 array of an IDX file, gzipped when its name ends in .gz.

    Format: two zero bytes, 0x08 for uint8, the number of dimensions, each length as a big-endian
    32-bit integer, then the values (Y. LeCun, "The MNIST database of handwritten digits").

    Raises:
        UsageError: the file is unreadable, of another kind, or not of its stated length; it is named.
    """
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        start, magic = 4 + 4 * dimensions, bytes((0, 0, 8, dimensions))
        if content[:4] != magic:
            raise _refused(path, f"begins with {content[:4].hex(' ') or 'nothing'} instead of {magic.hex(' ')}")
        lengths = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
        if len(content) != start + math.prod(lengths):
            raise _refused(path, f"has {len(content)} bytes where its header says {start + math.prod(lengths)}")
        return np.frombuffer(content, np.uint8, offset=start).reshape(lengths)
    except UsageError:
        raise
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise _refused(path, f"cannot be read ({_one_line(error)})") from error


def _read(raw: Path) -> dict[str, np.ndarray]:
    arrays = {}
    for array, file in _FILES.items():
        path = _find(raw, file) or raw / file
        arrays[array] = values = read_idx(path, 1 if array.endswith("labels") else 3)
        if array.endswith("images"):
            if values.size == 0:
                raise _refused(path, "holds no images")
            n_images = len(values)
        elif len(values) != n_images:
            raise _refused(path, f"has {len(values)} labels for {n_images} images")
        elif values.max() >= N_CLASSES:
            raise _refused(path, f"holds the label {values.max()}, which is not 0 to {N_CLASSES - 1}")
    if arrays["train_images"].shape[1:] != arrays["test_images"].shape[1:]:
        raise _refused(raw, "holds training and test images of different shapes")
    return arrays


def _find(raw: Path, file: str) -> Path | None:
    """The file of that name as torchvision keeps it: unpacked, or as it was downloaded."""
    return next((raw / name for name in (file, f"{file}.gz") if (raw / name).exists()), None)


def _digits() -> dict[str, np.ndarray]:
    """Read from scikit-learn's folder: to import scikit-learn takes longer than many a search on these images."""
    package = find_spec("sklearn")
    assert package is not None and package.origin is not None
    table = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", np.uint8, delimiter=",")
    arrays = {}
    for part, rows in (("train", table[:_N_TRAIN_DIGITS]), ("test", table[_N_TRAIN_DIGITS:])):
        arrays[f"{part}_images"], arrays[f"{part}_labels"] = rows[:, :-1].reshape(-1, 8, 8), rows[:, -1]
    return arrays


def _download(name: str, root: Path) -> None:
    """Fetch a data set; each file appears under its name when all are whole.

    Two processes that fetch at once use folders of their own and end with the same files.
    """
    source, was_there = SOURCES[name], root.exists()
    raw = root / source.folder / "raw"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as folder:
            for file, digest in zip(_FILES.values(), source.sums, strict=True):
                (Path(folder) / f"{file}.gz").write_bytes(_fetched(f"{source.address}{file}.gz", digest))
            _read(Path(folder))
            raw.mkdir(parents=True, exist_ok=True)
            for path in Path(folder).iterdir():
                os.replace(path, raw / path.name)
    except Exception as error:  # whatever a network, a proxy or a full disk may raise, the fix is the same
        raise UsageError(
            f"{name} is not in {root} and cannot be downloaded ({_one_line(error)}): fetch it where there is a network "
            f"with `python mnist.py --dataset {name} --data {shlex.quote(str(root))}`, "
            "name its folder with --data, or use --dataset digits, which needs no download"
        ) from error
    finally:
        if not was_there:
            with contextlib.suppress(OSError):  # it is not empty
                root.rmdir()


def _fetched(address: str, digest: str) -> bytes:
    print(f"fetching {address}", file=sys.stderr)
    with urlopen(address, timeout=_STALLED_S) as answer:
        content: bytes = answer.read(_LARGEST)
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != digest:
        raise UsageError(f"{address} is damaged: its MD5 is not {digest}")
    return content


def _refused(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} {why}: delete it and fetch the data set again")


def _one_line(error: Exception) -> str:
    if isinstance(error, UsageError):
        return str(error)
    text = textwrap.shorten(str(error), 120, placeholder=" ...")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def main(arguments: Sequence[str] | None = None) -> int:
    """`python mnist.py`: make sure that a data set is in its folder, and whole. Returns the exit status."""
    description = "Fetch a data set ahead of a job, and check it."
    return program(DatasetSettings, _fetch, arguments, prog="python mnist.py", description=description)


def _fetch(source: DatasetSettings) -> Exit:
    arrays = load(source.dataset, source.data_folder)
    counts = ", ".join(f"{len(arrays[f'{part}_labels'])} {part} images" for part in ("train", "test"))
    print(f"{source.dataset}: {counts}")
    return Exit.DONE
