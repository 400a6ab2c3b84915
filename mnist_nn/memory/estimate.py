"""The memory that a training takes of its device, computed before it starts."""

import math

import torch

from mnist_nn import net
from mnist_nn.shapes import Params, shapes_of, weights_of
from mnist_nn.steps import kernels
from mnist_nn.steps.grouped_hidden import padded_units
from mnist_nn.training import BATCHES_PER_BLOCK

LIBRARIES_BYTES = 64 * 2**20  # Allowed for what PyTorch's own operations use for a moment.


def memory_bytes(
    params: Params,
    image_shape: tuple[int, int],
    n_classes: int,
    *,
    device: torch.device,
    batch_size: int = 10,
    step: str = "manual",
    n_networks: int = 1,
) -> int:
    """Bytes that training and evaluating a network takes on its device, beyond the images.

    An upper estimate of the larger of the two: weights, what learning keeps (velocity and gradient) and a batch's
    activations; or weights and the largest activations of the evaluation.

    Args:
        params: of the network.
        image_shape: height and width in pixels.
        n_classes: outputs of the network.
        device: on which it is trained.
        batch_size: images of a step.
        step: name of the training step.
        n_networks: trained together; more than one only by the step "grouped".
    """
    shapes = shapes_of(params, image_shape, n_classes)
    n_units, n_features = shapes["hidden.weight"]
    n_units = padded_units(n_units) if step == "grouped" else n_units + -n_units % kernels.LANES
    n_channels, kernel = shapes["conv.weight"][0], shapes["conv.weight"][-1]
    hidden = n_features * n_units
    others = weights_of(params, image_shape, n_classes) - math.prod(shapes["hidden.weight"])
    # The initial weights and a copy in the order of the step exist at once for a moment. The gap that "grouped"
    # leaves is too small for the velocity, which has its units filled up, so on a GPU the allocator keeps all three.
    three = step == "autograd" or (step == "grouped" and device.type == "cuda")
    kept = hidden * (3 if three else 2) + 3 * others
    if step == "grouped":
        kept += hidden * batch_size // 2048  # parts of forward's sums, see triton_kernel
    activations = batch_size * (4 * n_features + n_features // n_channels * kernel**2)
    pixels = batch_size * math.prod(image_shape) * (4 if step == "grouped" else 2 * BATCHES_PER_BLOCK)
    evaluation = n_networks * (hidden + others) + 2 * net.evaluation_batch(n_features) * n_features
    return LIBRARIES_BYTES + 4 * max(n_networks * (kept + activations + pixels), evaluation)
