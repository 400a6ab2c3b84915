"""Predictions of an ensemble that --save-models kept, or of a network of mnist_nn.ddp.

python -m mnist_nn.predict RESULTS IMAGE...
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.data import N_CLASSES
from mnist_nn.bootstrap import majority_vote
from mnist_nn.shapes import evaluation_batch
from mpitune.devices.probe import require
from mpitune.errors import Exit, UsageError
from mpitune.processes.output import outlive_readers
from mpitune.settings import program, setting
from mpitune.storage.files import written_whole

ONE_MODEL = "model.pt"  # of mnist_nn.ddp
Form = tuple[int, int, int]  # of a data set's images: height, width, value of full ink


@dataclass(frozen=True)
class Predict:
    """Print how certain an ensemble that was trained with --save-models is of images, or one network."""

    results: Path = setting(help="results folder of mnist_nn, which holds models/*.pt, or of mnist_nn.ddp: model.pt")
    image: tuple[Path, ...] = setting(help="PNG of the size of the data's images, bright on dark")


def save_model(path: Path, params: Mapping[str, Any], form: Form, weights: Mapping[str, np.ndarray]) -> None:
    """Write the weights for `torch.load(path, weights_only=True)` and `load_state_dict`, and all else as .json."""
    import torch

    with written_whole(path.with_suffix(".json"), "w") as file:
        json.dump({"parameters": dict(params), "image": form}, file, indent=2)
    with written_whole(path) as file:
        torch.save({name: torch.from_numpy(array) for name, array in weights.items()}, file)


def answers_of(path: Path, images: Callable[[Form], np.ndarray]) -> np.ndarray:
    """float32 (n, n_classes): what the model in `path` makes of images uint8 (n, height, width) of its form."""
    import torch

    from mnist_nn.net import Images
    from mnist_nn.network import Network

    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
        about = json.loads(path.with_suffix(".json").read_bytes())
        height, width, ink = map(int, about["image"])
        with torch.device("meta"):  # which holds nothing, whatever sizes a stranger has written there
            network = Network(about["parameters"], (height, width), N_CLASSES)
        network.load_state_dict(weights, assign=True)  # as they lie in memory, for the same bits
        asked = Images(torch.from_numpy(images((height, width, ink))), ink)
        parts = asked.split(evaluation_batch(network.hidden.in_features))
        with torch.inference_mode():
            return torch.cat([network(part.normalised()).softmax(1) for part in parts]).numpy()
    except UsageError:
        raise
    except Exception as error:  # a damaged file fails in many ways, and the fix is the same
        raise UsageError(f"{path} is not a model of mnist_nn: train again with --save-models and --restart") from error


def read_image(path: Path, form: Form) -> np.ndarray:
    """uint8 (height, width) of a PNG, white as full ink. Raises UsageError that names the file."""
    from PIL import Image

    height, width, ink = form
    try:
        with Image.open(path, formats=("PNG",)) as file:
            if file.size != (width, height):
                raise ValueError(file.size)  # before it is unpacked
            return np.rint(np.asarray(file.convert("L")) * (ink / 255)).astype(np.uint8)
    except Exception as error:
        fix = f"give a PNG of {width} x {height} pixels"
        raise UsageError(f"{path} is no image of the data's form: {fix}") from error


def judge(settings: Predict) -> Exit:
    """Ask the models one after the other, then print their answers. Raises UsageError."""
    require("torch")
    folder = settings.results / "models"
    if not (paths := sorted(folder.glob("bootstrap-*.pt")) or sorted(settings.results.glob(ONE_MODEL))):
        raise UsageError(f"there are no models in {folder}: train with --save-models (mnist_nn.ddp: --save-model)")
    answers = [answers_of(path, lambda form: np.stack([read_image(i, form) for i in settings.image])) for path in paths]
    for path, certainty in zip(settings.image, np.stack(answers, axis=1), strict=True):
        mean, voted = certainty.mean(axis=0), int(majority_vote(certainty[:, None])[0])
        votes = int((certainty.argmax(axis=1) == voted).sum())
        print(f"{path}: {mean.argmax()}, {mean.max():.1%} sure; {votes} of {len(paths)} networks vote {voted}")
        print("  " + "  ".join(f"{digit}: {probability:.1%}" for digit, probability in enumerate(mean)))
    return Exit.DONE


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    return program(Predict, judge, arguments, prog="python -m mnist_nn.predict", description=Predict.__doc__ or "")


if __name__ == "__main__":
    outlive_readers()
    sys.exit(main())
