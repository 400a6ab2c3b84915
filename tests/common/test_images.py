"""Images: what is read, what is refused and by which name, and how they are fetched."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from common.data import _FILES, SOURCES, Source, load, main
from common.images import fold_slices, standardised
from mpitune.errors import UsageError
from tests.helpers import N_TEST, N_TRAIN, ROOT, idx, write_files

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def pack(raw: Path) -> None:
    """Leave each file as it is downloaded: gzipped."""
    for file in list(raw.iterdir()):
        file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()


@pytest.mark.parametrize("name, packed", [("mnist", False), ("fashion-mnist", True)])
def test_files_are_read_as_they_were_written(tmp_path: Path, name: str, packed: bool) -> None:
    raw = tmp_path / SOURCES[name].folder / "raw"
    arrays = write_files(raw)
    if packed:
        pack(raw)
    loaded = load(name, tmp_path)
    assert loaded.keys() == arrays.keys()
    for array, values in arrays.items():
        np.testing.assert_array_equal(loaded[array], values)
        assert loaded[array].dtype == np.uint8


def test_digits_are_split_by_a_fixed_rule() -> None:
    from sklearn.datasets import load_digits

    data, bunch = load("digits", Path("nowhere")), load_digits()
    assert data["train_images"].shape == (1437, 8, 8)
    assert data["test_images"].shape == (360, 8, 8)
    np.testing.assert_array_equal(np.concatenate([data["train_images"], data["test_images"]]), bunch.images)
    np.testing.assert_array_equal(np.concatenate([data["train_labels"], data["test_labels"]]), bunch.target)
    part = load("digits", Path(), 100, 7)
    assert all(np.array_equal(values, data[name][: 100 if "train" in name else 7]) for name, values in part.items())


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "truncated": (IMAGES, lambda content: content[:-1], "has 735 bytes where its header says 736"),
    "too long": (IMAGES, lambda content: content + b"\0", "has 737 bytes where its header says 736"),
    "only a header": (IMAGES, lambda content: content[:7], "bytes where its header says"),
    "empty": (LABELS, lambda content: b"", "begins with nothing"),
    "labels in place of images": (IMAGES, lambda content: idx(np.zeros(N_TRAIN)), "begins with 00 00 08 01"),
    "floats": (LABELS, lambda content: b"\0\0\x0d" + content[3:], "begins with 00 00 0d 01"),
    "lengths beyond all memory": (IMAGES, lambda content: content[:4] + b"\xff" * 12, "has 16 bytes"),
    "no images": (IMAGES, lambda content: idx(np.zeros((0, 6, 4))), "holds no images"),
    "too few labels": (LABELS, lambda content: idx(np.zeros(29)), "has 29 labels for 30 images"),
    "a label beyond 9": (LABELS, lambda content: idx(np.full(30, 10)), "holds the label 10"),
    "images of two shapes": ("t10k-images-idx3-ubyte", lambda content: idx(np.zeros((N_TEST, 5, 4))), "shapes"),
    "a damaged gzip file": (f"{LABELS}.gz", lambda content: b"x", "cannot be read"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    file, ruin, message = DAMAGES[name]
    raw = tmp_path / "MNIST" / "raw"
    write_files(raw)
    if file.endswith(".gz"):
        pack(raw)
    (raw / file).write_bytes(ruin((raw / file).read_bytes()))
    with pytest.raises(UsageError) as refused:
        load("mnist", tmp_path)
    said = str(refused.value)
    assert str(raw) in said and message in said and said.count(": delete it") == 1 and "\n" not in said
    assert file in said or "two shapes" in name


@pytest.mark.parametrize("n, folds", [(11, 5), (7, 7), (1437, 10)])
def test_folds_are_those_of_scikit_learn(n: int, folds: int) -> None:
    from sklearn.model_selection import KFold

    expected = [validation for _, validation in KFold(folds).split(np.zeros(n))]
    for fold, indices in zip(fold_slices(n, folds), expected, strict=True):
        np.testing.assert_array_equal(np.arange(n)[fold], indices)


def test_pixels_are_standardised_by_the_scale_of_their_data_set() -> None:
    grey = np.array([[[0, 100], [127, 255]]], dtype=np.uint8)
    np.testing.assert_allclose(standardised(grey, 255), (grey.reshape(1, 4) - 127.5) / 73.61, rtol=1e-6)
    uniform = standardised(np.arange(17, dtype=np.uint8).reshape(17, 1, 1), 16)
    assert uniform.dtype == np.float32 and uniform[-1] == -uniform[0] == np.float32(8 / 4.62)


def test_what_the_original_calls_says_what_it_found(tmp_path: Path) -> None:
    write_files(tmp_path / "MNIST" / "raw")
    done = subprocess.run([sys.executable, "mnist.py", "--data", tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "mnist: 30 train images, 10 test images\n", done.stderr


# Fetching, over HTTP from this machine, with address and sums replaced.


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a mirror, and the folder that it serves."""
    folder = tmp_path / "mirror"
    write_files(folder)
    pack(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", folder
    server.shutdown()
    server.server_close()


def sums(folder: Path) -> list[str]:
    """The MD5 of the files of a mirror, in the order in which they are fetched."""
    return [hashlib.md5((folder / f"{file}.gz").read_bytes()).hexdigest() for file in _FILES.values()]


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ("all", ""),
        ("too few labels", "has 29 labels for 30 images"),
        ("a file that another wrote", f"{LABELS}.gz is damaged: its MD5 is not 000"),
        ("nobody", "--data '"),
    ],
)
def test_a_data_set_is_fetched_or_leaves_nothing_behind(
    mirror: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    there: str, says: str,
) -> None:  # fmt: skip
    """One line names the ways out."""
    (address, folder), root = mirror, tmp_path / "my data"
    if there == "too few labels":
        (folder / f"{LABELS}.gz").write_bytes(gzip.compress(idx(np.zeros(29))))
    known = sums(folder)
    if there.startswith("a file"):
        known[1] = 32 * "0"
    address = "http://127.0.0.1:9/" if there == "nobody" else address
    monkeypatch.setitem(SOURCES, "mnist", Source("MNIST", address, (known[0], known[1], known[2], known[3])))
    if not says:
        assert main(["--data", str(root)]) == 0 and len(load("mnist", root)["test_labels"]) == N_TEST
        return
    assert main(["--data", str(root)]) == 2 and not root.exists()
    line = capsys.readouterr().err.splitlines()[-1]
    for part in (says, f"python mnist.py --dataset mnist --data '{root}'", "--dataset digits"):
        assert part in line


@pytest.mark.slow
def test_the_sums_are_those_that_torchvision_knows() -> None:
    datasets = pytest.importorskip("torchvision").datasets
    for name, kind in (("mnist", datasets.MNIST), ("fashion-mnist", datasets.FashionMNIST)):
        assert tuple(digest for _, digest in kind.resources) == SOURCES[name].sums
        assert SOURCES[name].address in kind.mirrors
