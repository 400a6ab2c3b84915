import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from common.data import load
from mnist_nn.images import Frame
from mnist_nn.net import Images
from mnist_nn.predict import SavedNetwork, load_model, main, save_model
from mnist_nn.training import train
from mpitune.trial import seed_of

pytestmark = pytest.mark.xdist_group("predict")  # one process trains the networks that they share
PARAMS = {"n_conv_layer": 8, "kernel_size": 3, "n_hidden_layer": 24, "learning_rate": 0.03, "momentum": 0.5}
DIGITS = Frame(8, 8, 16, 8)


def trained(n_images: int, key: str) -> SavedNetwork:
    """A network that knows the digits somewhat."""
    data = load("digits", Path())
    images = torch.from_numpy(data["train_images"][:n_images].copy())
    labels = torch.from_numpy(data["train_labels"][:n_images].astype(np.int64))
    device = torch.device("cpu")
    network = train(PARAMS, Images(images, 16.0), labels, n_classes=10, seed=seed_of(0, key), device=device, epochs=4)
    return SavedNetwork(PARAMS, DIGITS, {name: weight.numpy() for name, weight in network.weights.items()})


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for number in range(3):
        save_model(folder / "models" / f"bootstrap-{number:02}.pt", trained(600, f"b{number}"))
    return folder


@pytest.fixture
def six(tmp_path: Path) -> Path:
    """A six as a user may have it: large, dark on bright."""
    data = load("digits", Path())
    index = int(np.flatnonzero(data["test_labels"] == 6)[0])
    Image.fromarray(255 - data["test_images"][index] * 15).resize((160, 160)).save(tmp_path / "a six.png")
    return tmp_path / "a six.png"


def test_the_ensemble_knows_a_six(results: Path, six: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(results), str(six), str(six)]) == 0
    out = capsys.readouterr().out
    assert f"{six}: 6, " in out and "3 of 3 networks vote 6" in out
    figures = {path.name for path in (results / "figures").iterdir()}
    assert figures == {f"image-{n}-a_six.{kind}" for n in (1, 2) for kind in ("svg", "png")}


def test_figures_go_where_they_are_wanted(results: Path, six: Path, tmp_path: Path) -> None:
    assert main([str(results), str(six), "--output", str(tmp_path / "there")]) == 0
    assert (tmp_path / "there" / "image-1-a_six.svg").exists()


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line with which these arguments are refused."""
    assert main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_what_cannot_be_read_is_refused_by_name(
    results: Path, six: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"there are no models in {tmp_path / 'models'}" in refusal(capsys, tmp_path, six)
    assert "--help" in refusal(capsys, results)
    assert "absent.png does not exist" in refusal(capsys, results, tmp_path / "absent.png")
    (tmp_path / "text.png").write_text("six")
    assert "text.png is not a readable image" in refusal(capsys, results, six, tmp_path / "text.png")
    assert "give another --output" in refusal(capsys, results, six, "--output", tmp_path / "text.png")


def test_a_bad_model_is_refused_by_name(
    results: Path, six: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = results / "models" / "bootstrap-00.pt"
    whole, beside = good.read_bytes(), json.loads(good.with_suffix(".json").read_text())
    path = tmp_path / "models" / good.name
    path.parent.mkdir()
    path.write_bytes(whole)
    assert "bootstrap-00.json is missing: copy it" in refusal(capsys, tmp_path, six)
    for change in ({"format": 2}, {"parameters": {**PARAMS, "n_hidden_layer": 25}}, {"parameters": {"kernel_size": 9}}):
        path.with_suffix(".json").write_text(json.dumps({**beside, **change}))
        assert f"{path} is not a model of mnist_nn" in refusal(capsys, tmp_path, six)
    path.with_suffix(".json").write_text(json.dumps(beside))
    for bad in (b"", b"six", whole[: len(whole) // 2], [1, 2], {}):
        path.write_bytes(bad) if isinstance(bad, bytes) else torch.save(bad, path)
        assert f"{path} is not a model of mnist_nn" in refusal(capsys, tmp_path, six)


def test_models_of_different_studies_are_refused(
    results: Path, six: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load_model(results / "models" / "bootstrap-00.pt")
    save_model(tmp_path / "models" / "bootstrap-00.pt", model)
    save_model(tmp_path / "models" / "bootstrap-01.pt", model._replace(frame=Frame(8, 8, 255, 8)))
    assert "bootstrap-01.pt was trained on other images than bootstrap-00.pt" in refusal(capsys, tmp_path, six)


def test_help_needs_no_torch() -> None:
    code = (
        "import sys, contextlib; from mnist_nn.predict import main\n"
        "with contextlib.suppress(SystemExit): main(['--help'])\nassert 'torch' not in sys.modules"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "--output DIR" in shown
