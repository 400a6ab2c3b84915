"""The training step written by hand: no autograd, and every buffer allocated once.

The convolution is a product with the unfolded images. Batches have the image as their last axis, so that
the output of that product, (channels, positions x batch), is without any copy the input of the hidden
layer, (features, batch). A batch smaller than the step's is filled up with images whose loss does not count.

On a CPU it is faster than what PyTorch offers wherever the search may look (benchmarks/nn_step.py). On a GPU, replayed
from a CUDA graph, it takes 0.56 to 0.78 of the time of the best plain way (benchmarks/results/gpu_h100.md).
"""

import logging
import math
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnist_nn import net
from mnist_nn.steps import kernels
from mpitune.folders import private_folder
from mpitune.locks import locked

MOST_THREADS = 3  # with more, PyTorch's products, which use all of them, are faster than kernels on one
_log = logging.getLogger(__name__)


def make_step(
    weights: net.Weights, image_shape: tuple[int, int], *, batch_size: int, learning_rate: float, momentum: float
) -> "ManualStep":
    """The step for these weights, which it takes over."""
    n_units, n_features = weights["hidden.weight"].shape
    _log.info("training step: %d x %d weights, momentum %.2g", n_features, n_units, momentum)
    sgd: dict[str, Any] = dict(batch_size=batch_size, learning_rate=learning_rate, momentum=momentum)
    by_kernels = (
        weights["hidden.weight"].device.type == "cpu"
        and torch.get_num_threads() <= MOST_THREADS
        and batch_size <= kernels.LARGEST_BATCH
    )

    def make_hidden(hidden: Tensor) -> DenseHidden | KernelHidden:
        return (KernelHidden if by_kernels else DenseHidden)(hidden, **sgd)

    return ManualStep(weights, image_shape, make_hidden, **sgd)


def warm_up(image_shape: tuple[int, int], n_classes: int, batch_size: int) -> None:
    """Have what a step needs compiled for a CPU, by that of a small network: no trial is charged for it.

    Of processes of this node that begin at a time one compiles, the others wait and read.
    """
    if batch_size > kernels.LARGEST_BATCH:
        return
    params = dict(n_conv_layer=2, kernel_size=2, n_hidden_layer=17)
    weights = net.initial_weights(params, image_shape, n_classes, seed=1, device=torch.device("cpu"))
    step = make_step(weights, image_shape, batch_size=batch_size, learning_rate=0.1, momentum=0.1)
    with ExitStack() as lock:
        with suppress(OSError):  # no folder for locks can be made
            lock.enter_context(locked(private_folder(local=True) / "warm-up-step.lock"))
        step(torch.zeros(batch_size, *image_shape), torch.zeros(batch_size, dtype=torch.int64))


class DenseHidden:
    """The hidden layer's weights, learning by SGD with momentum; with PyTorch's products, so for any device and batch.

    Weights are kept as (features, units), batches of features as (features, batch) and of units as (batch, units):
    each product reads the weights in the order they lie in memory. A method overwrites what it has returned before.

    Attributes:
        units: number of units.
    """

    def __init__(self, weights: Tensor, *, batch_size: int, learning_rate: float, momentum: float) -> None:
        self._weights, self.units = weights, weights.shape[1]
        self._velocity = torch.zeros_like(weights)
        self._learning_rate, self._momentum = learning_rate, momentum
        self._output = weights.new_empty(batch_size, self.units)
        self._derivatives = weights.new_empty(len(weights), batch_size)

    def forward(self, features: Tensor) -> Tensor:
        """(features, batch) to (batch, units), the product with the weights."""
        return torch.mm(features.T, self._weights, out=self._output)

    def learn(self, features: Tensor, delta: Tensor) -> Tensor:
        """Learn from the loss's derivatives with respect to the output; returns those with respect to the features."""
        derivatives = torch.mm(self._weights, delta.T, out=self._derivatives)
        self._velocity.addmm_(features, delta, beta=self._momentum)
        self._weights.add_(self._velocity, alpha=-self._learning_rate)
        return derivatives

    def weights(self) -> Tensor:
        """(features, units) after the last step."""
        return self._weights

    def load(self, weights: Tensor) -> None:
        """Begin anew with other weights (features, units), in the same memory."""
        self._weights.copy_(weights)
        self._velocity.zero_()


class KernelHidden:
    """The same by `kernels`, on one core, where derivatives, velocity and weights are one pass.

    Units whose weights are zero and stay so are added up to a multiple of LANES.
    """

    def __init__(self, weights: Tensor, *, batch_size: int, learning_rate: float, momentum: float) -> None:
        missing = -weights.shape[1] % kernels.LANES
        self._weights = torch.nn.functional.pad(weights, (0, missing)) if missing else weights.contiguous()
        self._shape = n_features, self.units = self._weights.shape
        # Zeros of PyTorch, which begin at a cache line, where NumPy's do not: a row's registers then fill lines.
        self._velocity = flat(torch.zeros_like(self._weights))
        self._sgd = np.float32(momentum), np.float32(-learning_rate)
        self._batch = (0,) * batch_size
        # Units of a batch, as (batch, units) and in the packed order of the kernels.
        self._plain = torch.empty(batch_size, self.units)
        self._packed = torch.empty(batch_size * self.units)
        tiles = self._packed.view(self.units // kernels.LANES, batch_size, kernels.LANES)
        self._tiles = tiles.transpose(0, 1)
        self._part = torch.empty(batch_size * self.units).numpy()
        self._derivatives = torch.empty(n_features, batch_size)

    def forward(self, features: Tensor) -> Tensor:
        packed, part = self._packed.numpy(), self._part
        kernels.forward(self._batch, flat(self._weights), flat(features), packed, part, *self._shape)
        self._plain.view_as(self._tiles).copy_(self._tiles)
        return self._plain

    def learn(self, features: Tensor, delta: Tensor) -> Tensor:
        self._tiles.copy_(delta.view_as(self._tiles))
        kernels.learn(
            self._batch, flat(self._weights), self._packed.numpy(), flat(self._derivatives), *self._shape,
            self._velocity, flat(features), *self._sgd,
        )  # fmt: skip
        return self._derivatives

    def weights(self) -> Tensor:
        return self._weights

    def load(self, weights: Tensor) -> None:
        n_units = weights.shape[1]
        self._weights[:, :n_units].copy_(weights)
        self._weights[:, n_units:].zero_()  # a training that diverged has changed them, too
        self._velocity.fill(0)


class ManualStep:
    """One step of SGD with momentum per call: velocity = momentum * velocity + gradient; weight -= rate * velocity.

    Args:
        weights: of the network; emptied.
        image_shape: height and width of the images.
        batch_size: the largest number of images of a call.
        make_hidden: from the hidden layer's weights (features, units) to the layer that will learn them.
    """

    def __init__(
        self,
        weights: net.Weights,
        image_shape: tuple[int, int],
        make_hidden: Callable[[Tensor], DenseHidden | KernelHidden],
        *,
        batch_size: int,
        learning_rate: float,
        momentum: float,
    ) -> None:
        self.learning_rate, self.momentum = learning_rate, momentum
        self._n_units = len(weights["hidden.weight"])
        # Taken out of the dictionary, so that the layer may replace them and memory never holds both.
        self._hidden = make_hidden(weights.pop("hidden.weight").T)
        units = self._hidden.units
        n_classes, channels = len(weights["output.bias"]), len(weights["conv.bias"])
        kernel = weights["conv.weight"].shape[-1]
        new = weights["conv.bias"].new_zeros

        # All weights but the hidden layer's lie in one vector, to be updated by one operation.
        shapes = {
            "conv.weight": (channels, kernel * kernel),
            "conv.bias": (channels,),
            "hidden.bias": (units,),
            "output.weight": (n_classes, units),
            "output.bias": (n_classes,),
        }
        self._weights, self._velocity = (new(sum(map(math.prod, shapes.values()))) for _ in range(2))
        self._weight_of, self._velocity_of = (views(flat, shapes) for flat in (self._weights, self._velocity))
        self._take(weights)

        height, width = image_shape
        rows, columns = height - kernel + 1, width - kernel + 1
        self._images = new(height, width, batch_size)
        windows = self._images.unfold(0, kernel, 1).unfold(1, kernel, 1)  # (rows, columns, batch, k, k)
        self._windows = windows.permute(3, 4, 0, 1, 2)
        self._unfolded = new(kernel, kernel, rows, columns, batch_size)
        self._convolved = new(channels, rows * columns * batch_size)
        self._masked = new(channels, rows * columns * batch_size)
        self._log_probabilities, self._delta_output = (new(batch_size, n_classes) for _ in range(2))
        self._delta_hidden = new(batch_size, units)
        self._ones = new(self._convolved.shape[1]).fill_(1)
        self._target = new(batch_size, 1).fill_(-1)

    def _take(self, weights: net.Weights) -> None:
        """Copy all weights but the hidden layer's, and empty the dictionary."""
        self._weight_of["conv.weight"].copy_(weights["conv.weight"].flatten(1))
        self._weight_of["conv.bias"].copy_(weights["conv.bias"])
        self._weight_of["hidden.bias"][: self._n_units] = weights["hidden.bias"]
        self._weight_of["output.weight"][:, : self._n_units] = weights["output.weight"]
        self._weight_of["output.bias"].copy_(weights["output.bias"])
        weights.clear()

    def load(self, weights: net.Weights) -> None:
        """Begin anew with other weights of the same shapes, in the same memory; the dictionary is emptied."""
        self._hidden.load(weights.pop("hidden.weight").T)
        for side_by_side in (self._weights, self._velocity):
            side_by_side.zero_()
        self._take(weights)

    @property
    def hidden(self) -> Tensor | None:
        """The memory of the hidden layer's weights, (features, units); None where more units lie there."""
        weights = self._hidden.weights()
        return weights if weights.shape[1] == self._n_units else None

    @torch.inference_mode()
    def __call__(self, pixels: Tensor, labels: Tensor) -> Tensor:
        """Learn from normalised pixels (n, h, w) and labels (n,); return the sum of losses before the step."""
        n, weight = len(pixels), self._weight_of
        self._images[:, :, :n] = pixels.permute(1, 2, 0)
        self._unfolded.copy_(self._windows)
        unfolded = self._unfolded.view(weight["conv.weight"].shape[1], -1)
        torch.addmm(weight["conv.bias"][:, None], weight["conv.weight"], unfolded, out=self._convolved)
        features = self._convolved.relu_().view(-1, self._images.shape[2])
        units = self._hidden.forward(features).add_(weight["hidden.bias"]).relu_()
        logits = torch.addmm(weight["output.bias"], units, weight["output.weight"].T, out=self._delta_output)
        log_probabilities = torch.log_softmax(logits, 1, out=self._log_probabilities)

        target = labels[:, None]
        loss = log_probabilities.gather(1, target).sum().neg_()
        delta_output = torch.exp(log_probabilities, out=self._delta_output)
        delta_output.scatter_add_(1, target, self._target).mul_(1 / n)
        delta_output[n:] = 0
        delta_hidden = torch.mm(delta_output, weight["output.weight"], out=self._delta_hidden)
        mask(delta_hidden, units, delta_hidden)
        delta_features = self._hidden.learn(features, delta_hidden).view_as(self._convolved)
        delta_convolved = mask(delta_features, self._convolved, self._masked)

        self._learn("output.weight", delta_output.T, units)
        self._learn("output.bias", delta_output.T)
        self._learn("hidden.bias", delta_hidden.T)
        self._learn("conv.weight", delta_convolved, unfolded.T)
        self._learn("conv.bias", delta_convolved)
        self._weights.add_(self._velocity, alpha=-self.learning_rate)
        return loss

    def _learn(self, name: str, delta: Tensor, inputs: Tensor | None = None) -> None:
        """Velocity of the weights of one name from delta @ inputs, or from the sum of delta for a bias."""
        velocity = self._velocity_of[name]
        if inputs is None:
            velocity.addmv_(delta, self._ones[: delta.shape[1]], beta=self.momentum)
        else:
            velocity.addmm_(delta, inputs, beta=self.momentum)

    def finish(self) -> net.Weights:
        """The weights after the last step, as views of the step's own."""
        weight, n = self._weight_of, self._n_units
        kernel = self._unfolded.shape[0]
        return {
            "conv.weight": weight["conv.weight"].view(-1, 1, kernel, kernel),
            "conv.bias": weight["conv.bias"],
            "hidden.weight": self._hidden.weights()[:, :n].T,
            "hidden.bias": weight["hidden.bias"][:n],
            "output.weight": weight["output.weight"][:, :n],
            "output.bias": weight["output.bias"],
        }


def views(flat: Tensor, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """One view of (n,) for each name, in turn, of its shape."""
    parts = flat.split([math.prod(shape) for shape in shapes.values()])
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def mask(delta: Tensor, activation: Tensor, out: Tensor) -> Tensor:
    """delta where the rectified activation is positive, else 0: the derivative of ReLU."""
    return torch.ops.aten.threshold_backward.grad_input(delta, activation, 0, grad_input=out)


def flat(tensor: Tensor) -> np.ndarray:
    """A contiguous CPU tensor as an array of one axis in the same memory."""
    return tensor.view(-1).numpy()
