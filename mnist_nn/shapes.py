"""The sizes of a network, known without building it. Nothing here imports PyTorch, so rank 0 may ask."""

from __future__ import annotations

import math
from collections.abc import Mapping

Params = Mapping[str, float | int | str]
BATCHES_PER_BLOCK = 256  # of which a training normalises the images at a time
LIBRARY_BYTES = 64 << 20  # bytes that PyTorch's own operations use for a moment


def shapes_of(params: Params, image_shape: tuple[int, int], n_classes: int) -> dict[str, tuple[int, ...]]:
    """Shape of every weight of the network that `params` describe. Raises ValueError: the image is too small.

    `params`: n_conv_layer, kernel_size and n_hidden_layer.
    """
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


def weights_of(params: Params, image_shape: tuple[int, int], n_classes: int) -> int:
    """Number of weights, biases included."""
    return sum(math.prod(shape) for shape in shapes_of(params, image_shape, n_classes).values())


def evaluation_batch(features: int) -> int:
    """Number of images to evaluate at a time: as many as keep the convolution's output within 256 MiB."""
    return max(1, min(1000, 2**26 // features))


def memory_bytes(params: Params, image_shape: tuple[int, int], n_classes: int, *, batch_size: int = 10) -> int:
    """Bytes that a network of the search takes on its device, beyond the images.

    An upper estimate of the larger of the two: weights, their velocity and a batch's activations; or weights and the
    largest activations of the evaluation.
    """
    shapes = shapes_of(params, image_shape, n_classes)
    n_units, n_features = shapes["hidden.weight"]
    n_channels, kernel = shapes["conv.weight"][0], shapes["conv.weight"][-1]
    hidden = n_features * (n_units + -n_units % 16)  # which is what kernels fill it up to, at most
    others = weights_of(params, image_shape, n_classes) - math.prod(shapes["hidden.weight"])
    kept = 2 * hidden + 3 * others
    activations = batch_size * (4 * n_features + n_features // n_channels * kernel**2)
    pixels = batch_size * math.prod(image_shape) * 2 * BATCHES_PER_BLOCK
    evaluation = hidden + others + 2 * evaluation_batch(n_features) * n_features
    return LIBRARY_BYTES + 4 * max(kept + activations + pixels, evaluation)
