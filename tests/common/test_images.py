"""Images: what is read, what is refused and by which name, and how they are fetched."""

from __future__ import annotations

import gzip
import hashlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from common.data import SOURCES, Source, load, main
from common.images import fold_slices, standardised
from mpitune.errors import UsageError
from tests.helpers import N_TEST, N_TRAIN, PATIENCE, ROOT, idx, write_files

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def pack(raw: Path) -> None:
    """Leave each file as it is downloaded: gzipped."""
    for file in list(raw.iterdir()):
        file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()


def assert_same(loaded: dict[str, np.ndarray], arrays: dict[str, np.ndarray]) -> None:
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype == np.uint8


@pytest.mark.parametrize("name, folder", [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
@pytest.mark.parametrize("packed", [False, True])
def test_files_are_read_as_they_were_written(tmp_path: Path, name: str, folder: str, packed: bool) -> None:
    arrays = write_files(tmp_path / folder / "raw")
    if packed:
        pack(tmp_path / folder / "raw")
    assert_same(load(name, tmp_path, download=False), arrays)


def test_digits_are_split_by_a_fixed_rule() -> None:
    from sklearn.datasets import load_digits

    data, bunch = load("digits", Path("nowhere")), load_digits()
    assert data["train_images"].shape == (1437, 8, 8)
    assert data["test_images"].shape == (360, 8, 8)
    np.testing.assert_array_equal(np.concatenate([data["train_images"], data["test_images"]]), bunch.images)
    np.testing.assert_array_equal(np.concatenate([data["train_labels"], data["test_labels"]]), bunch.target)


def test_sizes_take_the_first_images() -> None:
    whole, part = load("digits", Path()), load("digits", Path(), 100, 7)
    for name, n in (("train_images", 100), ("train_labels", 100), ("test_images", 7), ("test_labels", 7)):
        np.testing.assert_array_equal(part[name], whole[name][:n])


def damage(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda file: (file.write_bytes(change(file.read_bytes())), None)[1]


DAMAGES = {
    "truncated": (IMAGES, damage(lambda content: content[:-1]), "has 735 bytes where its header says 736"),
    "too long": (IMAGES, damage(lambda content: content + b"\0"), "has 737 bytes where its header says 736"),
    "only a header": (IMAGES, damage(lambda content: content[:7]), "bytes where its header says"),
    "empty": (LABELS, damage(lambda content: b""), "begins with nothing"),
    "a page of a proxy": (LABELS, damage(lambda content: b"<html>"), "begins with 3c 68 74 6d"),
    "labels in place of images": (IMAGES, damage(lambda content: idx(np.zeros(N_TRAIN))), "begins with 00 00 08 01"),
    "floats": (LABELS, damage(lambda content: b"\0\0\x0d" + content[3:]), "begins with 00 00 0d 01"),
    "lengths beyond all memory": (IMAGES, damage(lambda content: content[:4] + b"\xff" * 12), "has 16 bytes"),
    "no images": (IMAGES, damage(lambda content: idx(np.zeros((0, 6, 4)))), "holds no images"),
    "too few labels": (LABELS, damage(lambda content: idx(np.zeros(29))), "has 29 labels for 30 images"),
    "a label beyond 9": (LABELS, damage(lambda content: idx(np.full(30, 10))), "holds the label 10"),
    "images of two shapes": ("t10k-images-idx3-ubyte", damage(lambda content: idx(np.zeros((N_TEST, 5, 4)))), "shapes"),
    "a damaged gzip file": (
        LABELS,
        lambda file: (file.with_name(f"{LABELS}.gz").write_bytes(b"x"), file.unlink())[1],
        "cannot be read",
    ),
    "a folder": (LABELS, lambda file: (file.unlink(), file.mkdir())[1], "cannot be read"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    file, ruin, message = DAMAGES[name]
    raw = tmp_path / "MNIST" / "raw"
    write_files(raw)
    ruin(raw / file)
    with pytest.raises(UsageError) as refused:
        load("mnist", tmp_path)
    said = str(refused.value)
    assert str(raw) in said and message in said and "\n" not in said
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
    assert uniform.dtype == np.float32
    assert uniform.shape == (17, 1)
    assert abs(uniform.mean()) < 1e-6
    assert uniform[-1] == -uniform[0] == np.float32(8 / 4.62)


def test_what_the_original_calls_says_what_it_found(tmp_path: Path) -> None:
    write_files(tmp_path / "MNIST" / "raw")
    done = subprocess.run([sys.executable, "mnist.py", "--data", tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "mnist: 30 train images, 10 test images\n", done.stderr


# Fetching, over HTTP from this machine, with the mirror's address and sums replaced.

FETCH = """
import sys
from common.data import SOURCES, Source, main
SOURCES["mnist"] = Source("MNIST", ("http://127.0.0.1:9/", sys.argv[1]), dict(sum.split("=") for sum in sys.argv[3:]))
sys.exit(main(["--data", sys.argv[2]]))
"""


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


def sums(folder: Path) -> list[tuple[str, str]]:
    """The files of a mirror with their MD5."""
    return [(file.name, hashlib.md5(file.read_bytes()).hexdigest()) for file in sorted(folder.iterdir())]


def fetch(address: str, folder: Path, root: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", FETCH, address, str(root), *map("=".join, sums(folder))]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_download_that_is_stopped_leaves_nothing_behind(mirror: tuple[str, Path], tmp_path: Path) -> None:
    """A mirror that takes the question and does not answer; then Ctrl-C."""
    root = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = fetch(f"http://127.0.0.1:{silent.getsockname()[1]}/", mirror[1], root)
        silent.settimeout(PATIENCE)
        connection, _ = silent.accept()
        with connection:
            assert list(root.iterdir())
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE)
    assert process.returncode and not root.exists()


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ("too few labels", "has 29 labels for 30 images"),
        ("a file that another wrote", f"{LABELS}.gz is damaged: its MD5 is not 000"),
        ("no mirror", "--data '"),
    ],
)
def test_what_cannot_be_fetched_leaves_nothing_behind(
    mirror: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    there: str, says: str,
) -> None:  # fmt: skip
    """One line names the ways out."""
    (address, folder), root = mirror, tmp_path / "my data"
    if there == "too few labels":
        (folder / f"{LABELS}.gz").write_bytes(gzip.compress(idx(np.zeros(29))))
    known = dict(sums(folder)) | ({f"{LABELS}.gz": 32 * "0"} if there.startswith("a file") else {})
    mirrors = ("http://127.0.0.1:9/",) if there == "no mirror" else (address,)
    monkeypatch.setitem(SOURCES, "mnist", Source("MNIST", mirrors, known))
    assert main(["--data", str(root)]) == 2 and not root.exists()
    line = capsys.readouterr().err.splitlines()[-1]
    for part in (says, f"python mnist.py --dataset mnist --data '{root}'", "--dataset digits"):
        assert part in line


@pytest.mark.slow
def test_the_sums_are_those_that_torchvision_knows() -> None:
    datasets = pytest.importorskip("torchvision").datasets
    for name, kind in (("mnist", datasets.MNIST), ("fashion-mnist", datasets.FashionMNIST)):
        assert dict(kind.resources) == SOURCES[name].sums
        assert set(kind.mirrors) == set(SOURCES[name].mirrors)
