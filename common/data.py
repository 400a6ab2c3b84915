"""Data sets of images of digits: their files, and the settings that name one.

Fetch a data set before a job whose nodes have no network:

    python mnist.py --dataset mnist --data DIR
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import shlex
import sys
import tempfile
import textwrap
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import numpy as np

from mpitune.errors import Exit, UsageError
from mpitune.settings import program, setting
from mpitune.storage.waiting import waiting


@dataclass(frozen=True)
class Source:
    """Where a data set can be fetched, as four gzip files.

    Attributes:
        folder: its name below the folder of the images, as torchvision has it.
        mirrors: addresses that the names of files are added to.
        sums: MD5 of each file, as torchvision knows them.
    """

    folder: str
    mirrors: tuple[str, ...]
    sums: Mapping[str, str]


_GZIP = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_MNIST_SUMS = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
_FASHION_SUMS = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
SOURCES = {
    "mnist": Source(
        "MNIST",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        dict(zip(_GZIP, _MNIST_SUMS, strict=True)),
    ),
    "fashion-mnist": Source(
        "FashionMNIST",
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        dict(zip(_GZIP, _FASHION_SUMS, strict=True)),
    ),
}
NAMES = (*SOURCES, "digits")
N_CLASSES = 10

_FILES = {"train": "train", "test": "t10k"}
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


def load(
    name: str, root: Path, train_size: int | None = None, test_size: int | None = None, download: bool = True
) -> dict[str, np.ndarray]:
    """The first images of a data set: train_images and test_images uint8 (n, height, width), labels uint8 (n,).

    Args:
        name: "mnist", "fashion-mnist" (torchvision's files under `root`), or "digits": the 8 x 8 images that come with
            scikit-learn, pixels 0..16, the first 1,437 to train and the last 360 to test.
        root: folder of the files.
        train_size: how many training images to keep, from the first on; None for all.
        test_size: the same of test images.
        download: fetch the files when they are absent.

    Raises:
        UsageError: a file is not what its name says, a size is above what there is, or a data set is not there and can
            be downloaded.
    """
    if name == "digits":
        arrays = _digits()
    else:
        raw = root / SOURCES[name].folder / "raw"
        if download and not is_present(name, root):
            _download(name, root)
        arrays = _read(raw, name, root)
    for part, size in (("train", train_size), ("test", test_size)):
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if size is not None and size > len(labels):
            raise UsageError(f"--{part}-size {size} is too large: {name} has {len(labels)} {part} images")
        arrays[f"{part}_images"], arrays[f"{part}_labels"] = images[:size], labels[:size]
    return arrays


def is_present(name: str, root: Path) -> bool:
    """Whether the files of a data set are there; `load` says whether they are whole."""
    if name not in SOURCES:
        return True
    raw = root / SOURCES[name].folder / "raw"
    return all(_find(raw, stem, kind) for stem in _FILES.values() for kind in ("images-idx3", "labels-idx1"))


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The uint8 array of an IDX file, gzipped when its name ends in .gz.

    Format: two zero bytes, 0x08 for uint8, the number of dimensions, each length as a big-endian
    32-bit integer, then the values (Y. LeCun, "The MNIST database of handwritten digits").

    Raises:
        UsageError: the file is unreadable, of another kind, or not of its stated length; it is named.
    """
    try:
        with waiting(f"folder {path.parent} has not answered"):
            content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise _refused(path, f"cannot be read ({_one_line(error)})") from error
    magic = bytes((0, 0, 8, dimensions))
    start = 4 + 4 * dimensions
    if content[:4] != magic:
        raise _refused(path, f"begins with {content[:4].hex(' ') or 'nothing'} instead of {magic.hex(' ')}")
    lengths = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    expected = start + int(np.prod(lengths, dtype=object))
    if len(content) != expected:
        raise _refused(path, f"has {len(content)} bytes where its header says {expected}")
    try:
        return np.frombuffer(content, np.uint8, offset=start).reshape(lengths)
    except ValueError as error:  # nothing in a shape such as (0, 2^32 - 1, 2^32 - 1)
        raise _refused(path, f"has the impossible shape {lengths}") from error


def _read(raw: Path, name: str, root: Path) -> dict[str, np.ndarray]:
    arrays = {}
    for part, stem in _FILES.items():
        images_file, labels_file = (_find(raw, stem, kind) for kind in ("images-idx3", "labels-idx1"))
        if images_file is None or labels_file is None:
            raise _absent(name, root, "")
        images, labels = read_idx(images_file, 3), read_idx(labels_file, 1)
        if images.size == 0:
            raise _refused(images_file, "holds no images")
        if len(images) != len(labels):
            raise _refused(labels_file, f"has {len(labels)} labels for {len(images)} images")
        if labels.max() >= N_CLASSES:
            raise _refused(labels_file, f"holds the label {labels.max()}, which is not 0 to {N_CLASSES - 1}")
        arrays[f"{part}_images"], arrays[f"{part}_labels"] = images, labels
    if arrays["train_images"].shape[1:] != arrays["test_images"].shape[1:]:
        raise UsageError(f"{raw} holds training and test images of different shapes: fetch {name} again")
    return arrays


def _find(raw: Path, stem: str, kind: str) -> Path | None:
    """The file of that name as torchvision keeps it: unpacked, or as it was downloaded."""
    names = (f"{stem}-{kind}-ubyte", f"{stem}-{kind}-ubyte.gz")
    return next((raw / name for name in names if (raw / name).exists()), None)


def _digits() -> dict[str, np.ndarray]:
    """Read from scikit-learn's folder: to import scikit-learn takes longer than many a search on these images."""
    package = find_spec("sklearn")
    assert package is not None and package.origin is not None
    table = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", np.uint8, delimiter=",")
    images, labels = table[:, :-1].reshape(-1, 8, 8), table[:, -1]
    train, test = slice(_N_TRAIN_DIGITS), slice(_N_TRAIN_DIGITS, None)
    return {
        "train_images": images[train],
        "train_labels": labels[train],
        "test_images": images[test],
        "test_labels": labels[test],
    }


def _download(name: str, root: Path) -> None:
    """Fetch a data set; each file appears under its name when all are whole.

    Two processes that fetch at once use folders of their own and end with the same files.
    """
    source, was_there = SOURCES[name], root.exists()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as folder:
            for file, digest in source.sums.items():
                (Path(folder) / file).write_bytes(_fetched(source.mirrors, file, digest))
            _read(Path(folder), name, root)
            raw = root / source.folder / "raw"
            raw.mkdir(parents=True, exist_ok=True)
            for file in source.sums:
                os.replace(Path(folder) / file, raw / file)
    except Exception as error:  # whatever a network, a proxy or a full disk may raise, the fix is the same
        raise _absent(name, root, f" and cannot be downloaded ({_one_line(error)})") from error
    finally:
        if not was_there:
            with contextlib.suppress(OSError):  # it is not empty
                root.rmdir()


def _fetched(mirrors: Sequence[str], file: str, digest: str) -> bytes:
    """The content of a file, from the first mirror that has it whole."""
    problem: Exception = UsageError("it has no mirror")
    for mirror in mirrors:
        print(f"fetching {mirror}{file}", file=sys.stderr)
        try:
            with urlopen(mirror + file, timeout=_STALLED_S) as answer:
                content: bytes = answer.read(_LARGEST)
        except (OSError, HTTPException) as error:
            problem = error
            continue
        if hashlib.md5(content, usedforsecurity=False).hexdigest() == digest:
            return content
        problem = UsageError(f"{mirror}{file} is damaged: its MD5 is not {digest}")
    raise problem


def _absent(name: str, root: Path, why: str) -> UsageError:
    return UsageError(
        f"{name} is not in {root}{why}: fetch it where there is a network with "
        f"`python mnist.py --dataset {name} --data {shlex.quote(str(root))}`, "
        "name its folder with --data, or use --dataset digits, which needs no download"
    )


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
    counts = ", ".join(f"{len(arrays[f'{part}_labels'])} {part} images" for part in _FILES)
    print(f"{source.dataset}: {counts}")
    return Exit.DONE
