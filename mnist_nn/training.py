"""Training one network and evaluating it.

Images stay where they are, as one uint8 tensor on the device; a few hundred batches at a time are gathered
in this epoch's order and normalised, and a step sees slices of them. The loss is read back once per such
block, so that a GPU is never waited for within one.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mnist_nn import net
from mnist_nn.shapes import Params, shapes_of, weights_of
from mnist_nn.steps import kernels
from mnist_nn.steps.choose import chosen_step, make_step
from mnist_nn.steps.deferred import BLOCK, blocks_of

BATCHES_PER_BLOCK = 256
LIBRARIES_BYTES = 64 * 2**20  # Allowed for what PyTorch's own operations use for a moment.


@dataclass(frozen=True)
class Trained:
    """A trained network.

    Attributes:
        weights: by name, on the device of the training.
        losses: mean training loss per image of each epoch, measured while training; inf where it diverged.
        diverged: a loss was not finite; the weights are of no use.
        step: name of the training step that was used.
    """

    weights: net.Weights
    losses: tuple[float, ...]
    diverged: bool
    step: str

    @property
    def epochs(self) -> int:
        """Number of epochs begun."""
        return len(self.losses)


def train(
    params: Params,
    images: Tensor,
    labels: Tensor,
    *,
    n_classes: int,
    seed: np.random.SeedSequence,
    device: torch.device,
    epochs: int = 20,
    batch_size: int = 10,
    tolerance: float = 0.8,
    step: str = "auto",
    white: float = 255.0,
) -> Trained:
    """Train a network by SGD with momentum on the mean cross-entropy of each batch.

    Training ends after `epochs` epochs, after an epoch whose mean loss is above `tolerance` times that of
    the epoch before, or as soon as a loss is not finite.

    Args:
        params: `n_conv_layer`, `kernel_size`, `n_hidden_layer`, `learning_rate` and `momentum`.
        images: uint8 (n, h, w) on `device`, at least one. uint8 because a worker shares them with its
            node and because a gathered fold is four times smaller; float32 images are taken as normalised.
        labels: int64 (n,) on `device`, in 0..n_classes-1.
        seed: of the initial weights and of the order of the images; it is not advanced.
        batch_size: the last batch of an epoch is smaller where it does not divide n.
        step: "autograd", "manual", "deferred", or "auto" for the one expected to be fastest.
        white: the largest value a pixel can have.

    Raises:
        ValueError: the kernel is larger than the images, there is no image, or the step is unknown.
    """
    if not len(images):
        raise ValueError("there is no image to train on")
    prepare(device)
    random = np.random.default_rng(seed)
    image_shape = (images.shape[1], images.shape[2])
    weights = net.initial_weights(params, image_shape, n_classes, seed=int(random.integers(2**63)), device=device)
    learn = make_step(
        step,
        weights,
        image_shape,
        batch_size=min(batch_size, len(images)),
        learning_rate=float(params["learning_rate"]),
        momentum=float(params["momentum"]),
    )
    losses: list[float] = []
    while len(losses) < epochs:
        order = torch.from_numpy(random.permutation(len(images))).to(device)
        total = 0.0
        for block in order.split(batch_size * BATCHES_PER_BLOCK):
            pixels = net.normalised(images[block], white)
            batches = zip(pixels.split(batch_size), labels[block].split(batch_size), strict=True)
            total += float(torch.stack([learn(x, y) for x, y in batches]).sum())
            if not math.isfinite(total):
                return Trained(learn.finish(), (*losses, math.inf), True, learn.name)
        losses.append(total / len(images))
        if len(losses) > 1 and losses[-1] > tolerance * losses[-2]:
            break
    return Trained(learn.finish(), tuple(losses), False, learn.name)


def probabilities(weights: net.Weights, images: Tensor, *, white: float = 255.0) -> Tensor:
    """float32 (n, n_classes): the probability that each image (n, h, w) shows each class."""
    return _logits(weights, images, white).softmax(1)


def cross_entropy(weights: net.Weights, images: Tensor, labels: Tensor, *, white: float = 255.0) -> float:
    """Mean cross-entropy per image of the labels (n,), the validation loss; inf where it is not finite."""
    loss = float(F.cross_entropy(_logits(weights, images, white).double(), labels))
    return loss if math.isfinite(loss) else math.inf


@torch.inference_mode()
def _logits(weights: net.Weights, images: Tensor, white: float) -> Tensor:
    batches = images.split(net.evaluation_batch(weights["hidden.weight"].shape[1]))
    return torch.cat([net.logits(weights, net.normalised(x, white)) for x in batches])


def memory_bytes(
    params: Params,
    image_shape: tuple[int, int],
    n_classes: int,
    *,
    device: torch.device,
    batch_size: int = 10,
    step: str = "auto",
) -> int:
    """What training and evaluating a network takes on its device, beyond the images, in bytes.

    An upper estimate of the larger of the two: weights, what learning keeps (velocity and gradient, or the
    deferred window) and a batch's activations; or weights and the largest activations of the evaluation.
    """
    shapes = shapes_of(params, image_shape, n_classes)
    n_units, n_features = shapes["hidden.weight"]
    momentum = float(params["momentum"])
    step = chosen_step(step, n_features, n_units, batch_size=batch_size, momentum=momentum, device=device)
    n_units += -n_units % kernels.LANES
    n_channels, kernel = shapes["conv.weight"][0], shapes["conv.weight"][-1]
    hidden = n_features * n_units
    others = weights_of(params, image_shape, n_classes) - math.prod(shapes["hidden.weight"])
    # The initial weights and a copy in the order of the step exist at once for a moment.
    kept = hidden * (3 if step == "autograd" else 2) + 3 * others
    if step == "deferred":
        kept += blocks_of(momentum) * BLOCK * batch_size * (n_features + n_units)
    activations = batch_size * (4 * n_features + n_features // n_channels * kernel**2)
    block = 2 * BATCHES_PER_BLOCK * batch_size * math.prod(image_shape)
    evaluation = hidden + others + 2 * net.evaluation_batch(n_features) * n_features
    return LIBRARIES_BYTES + 4 * max(kept + activations + block, evaluation)


def prepare(device: torch.device) -> None:
    """Settings of this process that the results and the speed depend on.

    Momentum of a dead unit decays into denormal numbers, which are 4 to 18 times slower on a CPU. TF32
    would round the factors of a product to 10 bits, which is PyTorch's default for convolutions.
    """
    torch.set_flush_denormal(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
