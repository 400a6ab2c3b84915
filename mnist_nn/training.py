"""Training a network, and evaluating it.

Images stay where they are, as one uint8 tensor on the device. `train` gathers a few hundred batches at a time in this
epoch's order, normalised, and a step sees slices of them. The loss is read once for each such block, so nothing waits
for a GPU within one. There the step is replayed from a CUDA graph.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mnist_nn import net
from mnist_nn.shapes import BATCHES_PER_BLOCK, Params, evaluation_batch
from mnist_nn.steps.graphed import Graphed, Prepared
from mnist_nn.steps.manual import ManualStep, make_step


@dataclass(frozen=True)
class Trained:
    """A trained network.

    Attributes:
        weights: by name, on the device of the training.
        losses: mean training loss per image of each epoch, measured while training; inf where it diverged.
        diverged: a loss was not finite; the weights are of no use.
    """

    weights: net.Weights
    losses: tuple[float, ...]
    diverged: bool

    @property
    def epochs(self) -> int:
        """Number of epochs begun."""
        return len(self.losses)


def train(
    params: Params,
    images: net.Images,
    labels: Tensor,
    *,
    n_classes: int,
    seed: np.random.SeedSequence,
    device: torch.device,
    epochs: int = 20,
    batch_size: int = 10,
    tolerance: float = 0.8,
    prepared: Prepared | None = None,
    on_progress: Callable[[float], None] = lambda epochs: None,
) -> Trained:
    """Train a network by SGD with momentum on the mean cross-entropy of each batch.

    Training ends after `epochs` epochs, after an epoch whose mean loss is above `tolerance` times that of
    the epoch before, or as soon as a loss is not finite. The last batch of an epoch is smaller where `batch_size` does
    not divide n.

    Args:
        params: `n_conv_layer`, `kernel_size`, `n_hidden_layer`, `learning_rate` and `momentum`.
        images: at least one, on `device`.
        labels: int64 (n,) on `device`, in 0..n_classes-1.
        n_classes: outputs of the network.
        seed: of the initial weights and of the order of the images; it is not advanced.
        device: where the images are.
        epochs: at most.
        batch_size: images of a step.
        tolerance: see above.
        prepared: on a GPU, the step of an earlier training, whose memory and graph this one uses if it can.
        on_progress: hears how many epochs are done, with fractions, now and then.

    Raises:
        ValueError: the kernel is larger than the images, or there is no image.
    """
    if not len(images):
        raise ValueError("there is no image to train on")
    prepare(device)
    batch_size = min(batch_size, len(images))
    random = np.random.default_rng(seed)
    drawn: dict[str, Any] = dict(seed=int(random.integers(2**63)), device=device)
    sgd: dict[str, Any] = {name: float(params[name]) for name in ("learning_rate", "momentum")}
    learn: ManualStep | Graphed
    if device.type == "cuda":
        learn = (prepared or Prepared()).step(params, images.shape, n_classes, batch_size=batch_size, **sgd, **drawn)
    else:
        weights = net.initial_weights(params, images.shape, n_classes, **drawn)
        learn = make_step(weights, images.shape, batch_size=batch_size, **sgd)
    losses: list[float] = []
    while len(losses) < epochs and (len(losses) < 2 or losses[-1] <= tolerance * losses[-2]):
        order = torch.from_numpy(random.permutation(len(images))).to(device)
        total = 0.0
        size = batch_size * BATCHES_PER_BLOCK
        for number, block in enumerate(order.split(size), start=1):
            pixels = images[block].normalised()
            batches = zip(pixels.split(batch_size), labels[block].split(batch_size), strict=True)
            total += float(torch.stack([learn(x, y) for x, y in batches]).sum())
            if not math.isfinite(total):
                return Trained(learn.finish(), (*losses, math.inf), True)
            on_progress(len(losses) + min(1.0, number * size / len(order)))
        losses.append(total / len(images))
    return Trained(learn.finish(), tuple(losses), False)


def probabilities(weights: net.Weights, images: net.Images) -> Tensor:
    """float32 (n, n_classes): the probability that each image (n, h, w) shows each class."""
    return _logits(weights, images).softmax(1)


def cross_entropy(weights: net.Weights, images: net.Images, labels: Tensor) -> float:
    """Mean cross-entropy per image of the labels (n,), the validation loss; inf where it is not finite."""
    loss = float(F.cross_entropy(_logits(weights, images).double(), labels))
    return loss if math.isfinite(loss) else math.inf


@torch.inference_mode()
def _logits(weights: net.Weights, images: net.Images) -> Tensor:
    batches = images.split(evaluation_batch(weights["hidden.weight"].shape[1]))
    return torch.cat([net.logits(weights, part.normalised()) for part in batches])


def prepare(device: torch.device) -> None:
    """Settings of this process that the results and the speed depend on.

    Momentum of a dead unit decays into denormal numbers, which are 4 to 18 times slower on a CPU. TF32
    would round the factors of a product to 10 bits, which is PyTorch's default for convolutions.
    """
    torch.set_flush_denormal(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False  # which chooses by what was faster just now
