"""Print how certain an ensemble of mnist_nn that --save-models kept, or a network of mnist_nn.ddp, is of images."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from common.data import N_CLASSES
from mpitune.devices.probe import require
from mpitune.errors import Exit, UsageError
from mpitune.processes.output import outlive_readers
from mpitune.settings import program, setting


@dataclass(frozen=True)
class Predict:
    """What the command line has."""

    results: Path = setting(help="results folder of mnist_nn: its models/*.pt; without these model.pt of mnist_nn.ddp")
    image: tuple[Path, ...] = setting(help="PNG of the size of the data's images, bright on dark")


def judge(settings: Predict) -> Exit:
    """Ask each model for its probabilities, then print their mean. Raises UsageError that names the file."""
    require("torch")
    import torch

    from mnist_nn import net, network

    answers: list[np.ndarray] = []
    for model in sorted(settings.results.glob("models/bootstrap-*.pt")) or settings.results.glob("model.pt"):
        pixels, path, fix = [], model, "train again with --save-models and --restart"
        try:
            about = json.loads(model.with_suffix(".json").read_bytes())
            height, width, ink = map(int, about["image"])
            with torch.device("meta"):  # which holds nothing, whatever sizes a stranger has written there
                module = network.Network(about["parameters"], (height, width), N_CLASSES)
            module.load_state_dict(torch.load(model, map_location="cpu", weights_only=True), assign=True)
            fix = f"give a PNG of {width} x {height} pixels, of 8 bits and opaque"
            for path in settings.image:
                with Image.open(path, formats=("PNG",)) as file:
                    if file.size != (width, height):
                        raise ValueError(file.size)  # before it is unpacked
                    if file.mode.startswith("I") or np.asarray(file.convert("RGBA"))[..., 3].min() < 255:
                        raise ValueError(file.mode)  # Pillow would clip 16 bits, and leave out what is transparent
                    pixels.append(np.rint(np.asarray(file.convert("L")) * (ink / 255)).astype(np.uint8))
            images = net.Images(torch.tensor(np.stack(pixels)), ink).normalised()
            answers.append(module(images).softmax(1).detach().numpy())
        except Exception as error:  # a damaged file fails in many ways, and the fix is the same
            raise UsageError(f"{path} cannot be read as it should: {fix}") from error
    if not answers:
        raise UsageError(f"there are no models in {settings.results}: train with --save-models (or --save-model)")
    for path, *each in zip(settings.image, *answers, strict=True):
        mean, votes = np.mean(each, axis=0), np.bincount(np.argmax(each, axis=1))
        print(f"{path}: {mean.argmax()}, {mean.max():.1%} sure; {votes.max()} of {len(each)} vote {votes.argmax()}")
    return Exit.DONE


if __name__ == "__main__":
    outlive_readers()
    raise SystemExit(program(Predict, judge, None, prog="python -m mnist_nn.predict", description=__doc__ or ""))
