"""What a network that was kept says of images in the data's form, and what is refused by name."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mnist_nn.predict import answers_of, main
from tests.helpers import table
from tests.mnist_nn.small import TINY, of_tiny

pytestmark = of_tiny


@pytest.fixture
def results(study: tuple[Path, str]) -> Path:
    return study[0]


@pytest.fixture
def six(tmp_path: Path) -> Path:
    """A test image as a PNG."""
    image = TINY.data()["test_images"][6]
    Image.fromarray(np.rint(image * (255 / 16)).astype(np.uint8)).save(tmp_path / "six.png")
    return tmp_path / "six.png"


def test_saved_networks_answer_as_the_study_did(results: Path, six: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, paths = TINY.data(), sorted((results / "models").glob("*.pt"))
    with np.load(results / "predictions.npz") as file:
        probabilities, extra = file["probabilities"], file["extra_probabilities"]
    for number, path in enumerate(paths):
        assert np.array_equal(answers_of(path, lambda form: data["test_images"].copy()), probabilities[number])
        assert np.array_equal(answers_of(path, lambda form: data["extra_images"].copy()), extra[number])
        params, row = json.loads(path.with_suffix(".json").read_text())["parameters"], table(results / "results.csv")
        assert {name: str(value) for name, value in params.items()} == {name: row[number][name] for name in params}
    assert len(paths) == 2 and main([str(results), str(six)]) == 0
    first, means = capsys.readouterr().out.splitlines()
    mean = probabilities[:, 6].mean(axis=0)
    assert first.startswith(f"{six}: {mean.argmax()}, {mean.max():.1%} sure; ") and " of 2 networks vote " in first
    assert means == "  " + "  ".join(f"{digit}: {share:.1%}" for digit, share in enumerate(mean))


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
    for bad in ("absent.png", "text.png", "wide.png"):
        assert f"{bad} is no image of the data's form" in refusal(results, six, tmp_path / bad), bad
    good = results / "models" / "bootstrap-00.pt"
    whole, beside = good.read_bytes(), good.with_suffix(".json").read_text()
    path = tmp_path / "models" / good.name
    path.parent.mkdir()
    path.write_bytes(whole)
    assert f"{path} is not a model of mnist_nn" in refusal(tmp_path, six), "without its .json"
    path.with_suffix(".json").write_text(json.dumps({"image": [8, 8]}))
    assert f"{path} is not a model of mnist_nn" in refusal(tmp_path, six)
    path.with_suffix(".json").write_text(beside)
    weights = torch.load(good, weights_only=True)
    weights["hidden.weight"] = weights["hidden.weight"][:, 1:]
    for content in (b"", b"six", whole[: len(whole) // 2], [1, 2], {}, weights):
        path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
        assert f"{path} is not a model of mnist_nn" in refusal(tmp_path, six)
