"""Predictions of an ensemble that --save-models kept, or of a network of mnist_nn.ddp.

python -m mnist_nn.predict RESULTS IMAGE...
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common.data import N_CLASSES
from mnist_nn.images import Frame, read_image
from mnist_nn.shapes import shapes_of
from mpitune.devices.probe import require
from mpitune.errors import Exit, UsageError
from mpitune.processes.output import outlive_readers
from mpitune.settings import program, setting
from mpitune.storage.files import written_whole

PROG = "python -m mnist_nn.predict"
FORMAT = 1
ONE_MODEL = "model.pt"  # of mnist_nn.ddp


class SavedNetwork(NamedTuple):
    """A network of the ensemble: its parameters, the form of its images, and its weights by name, float32."""

    params: Mapping[str, float | int | str]
    frame: Frame
    weights: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Predict:
    """Print and plot how certain an ensemble that was trained with --save-models is of images, or one network."""

    results: Path = setting(help="results folder of mnist_nn, which holds models/*.pt, or of mnist_nn.ddp: model.pt")
    image: tuple[Path, ...] = setting(help="image files")
    output: Path | None = setting(None, "folder of the figures (default: figures in the results folder)", metavar="DIR")


def save_model(path: Path, model: SavedNetwork) -> None:
    """Write the weights for `torch.load(path, weights_only=True)` and `load_state_dict`, and all else as .json."""
    import torch

    image = asdict(model.frame)
    image["white"] = image.pop("max_pixel")  # its name in files
    with written_whole(path.with_suffix(".json"), "w") as file:
        json.dump({"format": FORMAT, "parameters": dict(model.params), "image": image}, file, indent=2)
        file.write("\n")
    with written_whole(path) as file:
        torch.save({name: torch.from_numpy(array) for name, array in model.weights.items()}, file)


def load_model(path: Path) -> SavedNetwork:
    """Read what `save_model` wrote. Raises UsageError naming the file when it is anything else."""
    import torch

    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
        content = json.loads(path.with_suffix(".json").read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}, not {FORMAT}")
        image, params = dict(content["image"]), dict(content["parameters"])
        frame = Frame(max_pixel=image.pop("white"), **image)
        weights = {name: tensor.numpy() for name, tensor in stored.items()}
        expected = shapes_of(params, (frame.height, frame.width), N_CLASSES)
        for name, shape in expected.items():
            if weights[name].shape != shape or weights[name].dtype != np.float32:
                raise ValueError(f"its {name} does not have the shape that its parameters ask for")
    except FileNotFoundError as error:
        raise UsageError(f"{error.filename} is missing: copy it from the results folder of the training") from error
    except Exception as error:  # a damaged file fails in many ways, and the fix is the same
        raise UsageError(f"{path} is not a model of mnist_nn: train again with --save-models and --restart") from error
    return SavedNetwork(params, frame, weights)


def predict(model: SavedNetwork, images: np.ndarray) -> np.ndarray:
    """float32 (n, n_classes): probabilities of images uint8 (n, height, width), computed on the CPU."""
    import torch

    from mnist_nn.net import Images
    from mnist_nn.training import probabilities

    weights = {name: torch.from_numpy(array) for name, array in model.weights.items()}
    pixels = torch.from_numpy(np.require(images, requirements="W"))  # PyTorch warns of arrays that are read-only
    return probabilities(weights, Images(pixels, float(model.frame.max_pixel))).numpy()


def judge(settings: Predict) -> Exit:
    """Load the models one after the other, then print and draw their answers. Raises UsageError."""
    from mnist_nn.figures import Shown, draw_certainty, file_stem

    require("torch")
    folder = settings.results / "models"
    paths = sorted(folder.glob("bootstrap-*.pt")) or sorted(settings.results.glob(ONE_MODEL))
    if not paths:
        raise UsageError(
            f"there are no models in {folder}: give the results folder of a run with --save-models, or of mnist_nn.ddp "
            "with --save-model"
        )
    frame = load_model(paths[0]).frame
    images = np.stack([read_image(path, frame) for path in settings.image])
    answers = []
    for path in paths:
        model = load_model(path)
        if model.frame != frame:
            raise UsageError(f"{path} was trained on other images than {paths[0].name}: keep one study in a folder")
        answers.append(predict(model, images))
    shown = [
        Shown(f"image-{n + 1}-{file_stem(path)}", path.name, images[n], np.stack([answer[n] for answer in answers]))
        for n, path in enumerate(settings.image)
    ]
    output = settings.output or settings.results / "figures"
    try:
        draw_certainty(output, shown, "class")
    except OSError as error:
        raise UsageError(f"{output} cannot be written ({error.strerror}): give another --output") from error
    for path, asked in zip(settings.image, shown, strict=True):
        means = asked.probabilities.mean(axis=0)
        print(f"{path}: {asked.answer}, {asked.certainty:.1%} sure; {asked.votes}")
        print("  " + "  ".join(f"{digit}: {mean:.1%}" for digit, mean in enumerate(means)))
    print(f"figures: {output}")
    return Exit.DONE


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    return program(Predict, judge, arguments, prog=PROG, description=Predict.__doc__ or "")


if __name__ == "__main__":
    outlive_readers()
    sys.exit(main())
