"""The sizes of a network, known without building it. Nothing here imports PyTorch, so rank 0 may ask."""

from __future__ import annotations

import math
from collections.abc import Mapping

Params = Mapping[str, float | int | str]


def shapes_of(params: Params, image_shape: tuple[int, int], n_classes: int) -> dict[str, tuple[int, ...]]:
    """Shape of every weight of the network that `params` describes.

    Args:
        params: `n_conv_layer`, `kernel_size` and `n_hidden_layer`; or `network`, if that is "kubeflow".
        image_shape: height and width of an image in pixels.
        n_classes: outputs of the network.

    Raises:
        ValueError: the kernel is larger than the image.
    """
    if params.get("network") == "kubeflow":
        return kubeflow_shapes(image_shape, n_classes)
    channels, hidden, k = (int(params[name]) for name in ("n_conv_layer", "n_hidden_layer", "kernel_size"))
    height, width = image_shape
    if k > min(height, width):
        raise ValueError(f"kernel_size {k} does not fit an image of {height} x {width} pixels")
    features = channels * (height - k + 1) * (width - k + 1)
    return {
        "conv.weight": (channels, 1, k, k),
        "conv.bias": (channels,),
        "hidden.weight": (hidden, features),
        "hidden.bias": (hidden,),
        "output.weight": (n_classes, hidden),
        "output.bias": (n_classes,),
    }


def kubeflow_shapes(image_shape: tuple[int, int], n_classes: int) -> dict[str, tuple[int, ...]]:
    """Shape of every weight of `mnist_nn.net.kubeflow_logits`. Raises ValueError for images that are too small."""
    first, second, units, k = 20, 50, 500, 5
    height, width = (((side - k + 1) // 2 - k + 1) // 2 for side in image_shape)
    if min(height, width) < 1:
        raise ValueError("the Kubeflow network needs images of at least 16 x 16 pixels")
    return {
        "conv1.weight": (first, 1, k, k),
        "conv1.bias": (first,),
        "conv2.weight": (second, first, k, k),
        "conv2.bias": (second,),
        "hidden.weight": (units, second * height * width),
        "hidden.bias": (units,),
        "output.weight": (n_classes, units),
        "output.bias": (n_classes,),
    }


def weights_of(params: Params, image_shape: tuple[int, int], n_classes: int) -> int:
    """Number of weights, biases included."""
    return sum(math.prod(shape) for shape in shapes_of(params, image_shape, n_classes).values())
