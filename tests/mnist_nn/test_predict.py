"""What networks that were kept say of images in the data's form, and what is refused by name."""

import json
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch
from PIL import Image

from mnist_nn.predict import Predict, judge
from mpitune.errors import UsageError
from tests.mnist_nn.small import TINY, of_tiny

pytestmark = of_tiny


@pytest.fixture
def six(tmp_path: Path) -> Path:
    """A test image as a PNG."""
    image = TINY.data()["test_images"][6]
    Image.fromarray(np.rint(image * (255 / 16)).astype(np.uint8)).save(tmp_path / "six.png")
    return tmp_path / "six.png"


def test_kept_networks_answer_as_the_study_did(
    study: tuple[Path, str], six: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with np.load(study[0] / "predictions.npz") as file:
        mean = file["probabilities"][:, 6].mean(axis=0)
    assert judge(Predict(study[0], (six, six))) == 0
    first, again = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{six}: {mean.argmax()}, {mean.max():.1%} sure; ") and " of 2 vote " in first
    assert again == first
    copytree(study[0] / "models", six.parent / "models")
    (six.parent / "model.pt").touch()  # of mnist_nn.ddp, whose answer is another
    assert judge(Predict(six.parent, (six,))) == 0 and capsys.readouterr().out == f"{first}\n"


def test_what_cannot_be_read_is_refused_by_name(study: tuple[Path, str], six: Path, tmp_path: Path) -> None:
    def refused(text: str, folder: Path, image: Path = six) -> None:
        with pytest.raises(UsageError) as error:
            judge(Predict(folder, (image,)))
        assert text in str(error.value) and "\n" not in str(error.value)

    refused(f"there are no models in {tmp_path}", tmp_path)
    (tmp_path / "text.png").write_text("six")
    Image.new("L", (9, 8)).save(tmp_path / "wide.png")
    ink = np.asarray(Image.open(six))
    Image.fromarray(ink.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    Image.fromarray(np.dstack([ink | 255, ink])).save(tmp_path / "clear.png")
    for bad in ("absent.png", "text.png", "wide.png", "deep.png", "clear.png"):
        refused(f"{bad} cannot be read as it should: give a PNG of 8 x 8 pixels", study[0], tmp_path / bad)
    good = study[0] / "models" / "bootstrap-00.pt"
    weights, path = torch.load(good, weights_only=True), tmp_path / "model.pt"
    weights["hidden.weight"] = weights["hidden.weight"][:, 1:]
    for about in ({"image": [8, 8]}, json.loads(good.with_suffix(".json").read_text())):
        path.with_suffix(".json").write_text(json.dumps(about))
        for content in (b"six", good.read_bytes()[:1000], {}, weights, {"hidden.weight": Path(".")}):
            path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
            refused(f"{path} cannot be read as it should: train again", tmp_path)
