"""The networks as modules of PyTorch: for `mnist_nn.ddp`, and for weights that were kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnist_nn.shapes import Params
from mpitune.storage.files import written_whole

Form = tuple[int, int, int]  # of a data set's images: height, width, value of full ink


class Network(nn.Module):
    """The network that `params` describe, with PyTorch's initial weights from its global generator.

    With n_conv_layer, kernel_size and n_hidden_layer it is the one of `mnist_nn.net`. With network "kubeflow" it is
    that of the MNIST example of the Kubeflow training operator: two convolutions, each followed by 2 x 2 pooling, and
    one hidden layer, 431,080 weights for images of 28 x 28 pixels. ReLU is monotonic: after pooling it has a quarter
    of the work.

    Its `forward` maps normalised pixels (n, h, w) to logits (n, n_classes). While `seen` is a dictionary, it gets what
    each layer puts out, by its name. Raises ValueError for images that are too small.
    """

    def __init__(self, params: Params, image_shape: tuple[int, int], n_classes: int) -> None:
        super().__init__()
        self.seen: dict[str, Tensor] | None = None
        if params.get("network") == "kubeflow":
            self._pool, kernel, units, channels = 2, 5, 500, {"conv1": 20, "conv2": 50}
        else:
            self._pool, kernel, units = 1, int(params["kernel_size"]), int(params["n_hidden_layer"])
            channels = {"conv": int(params["n_conv_layer"])}
        self._convolutions, inputs, sides = tuple(channels), 1, torch.Size(image_shape)
        for name, outputs in channels.items():
            sides = torch.Size((side - kernel + 1) // self._pool for side in sides)
            self.add_module(name, nn.Conv2d(inputs, outputs, kernel))
            inputs = outputs
        if min(sides) < 1:
            raise ValueError(f"images of {' x '.join(map(str, image_shape))} pixels are too small")
        self.hidden = nn.Linear(inputs * sides.numel(), units)
        self.output = nn.Linear(units, n_classes)

    def forward(self, pixels: Tensor) -> Tensor:
        x, seen = pixels[:, None], dict[str, Tensor]()
        for name in self._convolutions:
            x = self.get_submodule(name)(x)
            seen[name] = x = (F.max_pool2d(x, self._pool) if self._pool > 1 else x).relu()
        seen["hidden"] = hidden = self.hidden(x.flatten(1)).relu()
        seen["output"] = self.output(hidden)
        if self.seen is not None:
            self.seen |= seen
        return seen["output"]


def save_model(path: Path, params: Params, form: Form, weights: Mapping[str, np.ndarray]) -> None:
    """Write the weights for `torch.load(path, weights_only=True)` and `load_state_dict`, and all else as .json."""
    with written_whole(path.with_suffix(".json"), "w") as file:
        json.dump({"parameters": dict(params), "image": form}, file, indent=2)
    with written_whole(path) as file:
        torch.save({name: torch.from_numpy(array) for name, array in weights.items()}, file)
