"""The memory that a training takes of its device, computed before it starts."""

import math

from mnist_nn import net
from mnist_nn.shapes import Params, shapes_of, weights_of
from mnist_nn.steps import kernels
from mnist_nn.training import BATCHES_PER_BLOCK

LIBRARIES_BYTES = 64 * 2**20  # Allowed for what PyTorch's own operations use for a moment.


def memory_bytes(
    params: Params,
    image_shape: tuple[int, int],
    n_classes: int,
    *,
    batch_size: int = 10,
    step: str = "auto",
) -> int:
    """Bytes that training and evaluating a network takes on its device, beyond the images.

    An upper estimate of the larger of the two: weights, what learning keeps (velocity and gradient) and a batch's
    activations; or weights and the largest activations of the evaluation.

    Args:
        params: of the network.
        image_shape: height and width in pixels.
        n_classes: outputs of the network.
        batch_size: images of a step.
        step: name of the training step.
    """
    shapes = shapes_of(params, image_shape, n_classes)
    n_units, n_features = shapes["hidden.weight"]
    n_units += -n_units % kernels.LANES
    n_channels, kernel = shapes["conv.weight"][0], shapes["conv.weight"][-1]
    hidden = n_features * n_units
    others = weights_of(params, image_shape, n_classes) - math.prod(shapes["hidden.weight"])
    # The manual step has no gradient of the hidden layer; the initial weights are used as they are, or given up for a
    # copy with its units filled up, before there is a velocity.
    kept = hidden * (3 if step == "autograd" else 2) + 3 * others
    activations = batch_size * (4 * n_features + n_features // n_channels * kernel**2)
    pixels = batch_size * math.prod(image_shape) * 2 * BATCHES_PER_BLOCK
    evaluation = hidden + others + 2 * net.evaluation_batch(n_features) * n_features
    return LIBRARIES_BYTES + 4 * max(kept + activations + pixels, evaluation)
