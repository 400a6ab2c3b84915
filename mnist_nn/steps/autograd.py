"""The training step in plain PyTorch: autograd and `torch.optim.SGD`. The reference of all others."""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from mnist_nn import net


class AutogradStep:
    """One step of SGD with momentum per call.

    Args:
        weights: of the network; they are updated in place.
        learning_rate, momentum: as in `torch.optim.SGD`: velocity = momentum * velocity + gradient;
            weight -= learning_rate * velocity.
    """

    def __init__(self, weights: net.Weights, *, learning_rate: float, momentum: float) -> None:
        self.weights = {name: weight.requires_grad_() for name, weight in weights.items()}
        self.optimizer = torch.optim.SGD(self.weights.values(), lr=learning_rate, momentum=momentum)

    def __call__(self, pixels: Tensor, labels: Tensor) -> Tensor:
        """Learn from normalised pixels (n, h, w) and labels (n,); return the sum of losses before the step."""
        self.optimizer.zero_grad()
        with _without_cudnn(pixels.device):
            loss = F.cross_entropy(net.logits(self.weights, pixels), labels)
            loss.backward()
        self.optimizer.step()
        return loss.detach() * len(pixels)

    def finish(self) -> net.Weights:
        """The weights after the last step."""
        return {name: weight.detach() for name, weight in self.weights.items()}


def _without_cudnn(device: torch.device) -> AbstractContextManager[None]:
    """On a GPU, PyTorch's own convolutions.

    cuDNN's gradient of a convolution's weights either is added up in any order, or (`cudnn.deterministic`, PyTorch 2.11
    on an H100) is wrong by up to 3e-3 of its largest, though TF32 is off: docs/gpu.md.
    """
    if device.type == "cpu":
        return nullcontext()
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=False, allow_tf32=False)
    return flags
