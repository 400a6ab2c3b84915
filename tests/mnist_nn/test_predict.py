"""What a network that was kept says of images in the data's form, and what is refused by name."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from common.data import load
from mnist_nn.net import Images
from mnist_nn.predict import main, save_model
from mnist_nn.training import train
from mpitune.trial import seed_of

pytestmark = pytest.mark.xdist_group("predict")  # one process trains the networks that they share
PARAMS = {"n_conv_layer": 8, "kernel_size": 3, "n_hidden_layer": 24, "learning_rate": 0.03, "momentum": 0.5}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three networks that know the digits somewhat."""
    folder, data, cpu = tmp_path_factory.mktemp("results"), load("digits", Path()), torch.device("cpu")
    images = Images(torch.from_numpy(data["train_images"][:600].copy()), 16.0)
    labels = torch.from_numpy(data["train_labels"][:600].astype(np.int64))
    for n in range(3):
        network = train(PARAMS, images, labels, n_classes=10, seed=seed_of(0, f"b{n}"), device=cpu, epochs=4)
        weights = {name: weight.numpy() for name, weight in network.weights.items()}
        save_model(folder / "models" / f"bootstrap-{n:02}.pt", PARAMS, (8, 8, 16), weights)
    return folder


@pytest.fixture
def six(tmp_path: Path) -> Path:
    data = load("digits", Path())
    image = data["test_images"][np.flatnonzero(data["test_labels"] == 6)[0]]
    np.save(tmp_path / "six.npy", image)
    Image.fromarray(np.rint(image * (255 / 16)).astype(np.uint8)).save(tmp_path / "six.png")
    return tmp_path / "six.png"


def test_the_ensemble_knows_a_six(results: Path, six: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(results), str(six), str(six.with_suffix(".npy"))]) == 0
    first, means, second, same = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{six}: 6, ") and first.endswith("3 of 3 networks vote 6")
    assert means == same and first.partition(": ")[2] == second.partition(": ")[2]


def test_what_cannot_be_read_is_refused_by_name(
    results: Path, six: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusal(*arguments: object) -> str:
        assert main([str(argument) for argument in arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1
        return captured.err

    assert f"there are no models in {tmp_path / 'models'}" in refusal(tmp_path, six)
    assert "--help" in refusal(results)
    (tmp_path / "text.png").write_text("six")
    Image.new("L", (9, 8)).save(tmp_path / "wide.png")
    for name, array in (("deep", np.zeros((8, 8, 1), np.uint8)), ("float", np.zeros((8, 8))), ("any", np.array([{}]))):
        np.save(tmp_path / f"{name}.npy", array)
    for bad in ("absent.png", "text.png", "wide.png", "deep.npy", "float.npy", "any.npy"):
        assert f"{bad} is no image of the data's form" in refusal(results, six, tmp_path / bad), bad
    good = results / "models" / "bootstrap-00.pt"
    whole, beside = good.read_bytes(), good.with_suffix(".json").read_text()
    path = tmp_path / "models" / good.name
    path.parent.mkdir()
    path.write_bytes(whole)
    assert "bootstrap-00.json is missing: copy it" in refusal(tmp_path, six)
    path.with_suffix(".json").write_text(json.dumps({"image": [8, 8]}))
    assert f"{path} is not a model of mnist_nn" in refusal(tmp_path, six)
    path.with_suffix(".json").write_text(beside)
    weights = torch.load(good, weights_only=True)
    weights["hidden.weight"] = weights["hidden.weight"][:, 1:]
    for content in (b"", b"six", whole[: len(whole) // 2], [1, 2], {}, weights):
        path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
        assert f"{path} is not a model of mnist_nn" in refusal(tmp_path, six)


def test_help_needs_no_torch() -> None:
    code = (
        "import sys, contextlib; from mnist_nn.predict import main\n"
        "with contextlib.suppress(SystemExit): main(['--help'])\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
