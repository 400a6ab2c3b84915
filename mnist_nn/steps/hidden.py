"""The hidden layer's weights and what a step does with them: nearly all its time for all but tiny networks.

Weights are kept as (features, units), batches of features as (features, batch) and of units as
(batch, units), so that each product below reads the weights in the order they lie in memory.
"""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mnist_nn.steps import kernels


class Hidden(Protocol):
    """Weights of shape (features, units) learning by SGD with momentum.

    units: number of units, perhaps with some added whose weights are zero and stay so.
    """

    units: int

    def forward(self, features: Tensor) -> Tensor:
        """(features, batch) to (batch, units), the product with the weights, overwritten by the next call."""

    def learn(self, features: Tensor, delta: Tensor) -> Tensor:
        """Learn from the loss's derivatives `delta` (batch, units) with respect to the output of `forward`.

        Returns those with respect to the features, (features, batch), overwritten by the next call.
        """

    def weights(self) -> Tensor:
        """(features, units) after the last step; there may be no further one."""


class Products:
    """The two products with the weights, by PyTorch: for any device, batch size and number of threads."""

    def __init__(self, weights: Tensor, batch_size: int) -> None:
        self.weights, self.units = weights, weights.shape[1]
        self._output = weights.new_empty(batch_size, self.units)
        self._derivatives = weights.new_empty(len(weights), batch_size)

    def forward(self, features: Tensor) -> Tensor:
        """(features, batch) to (batch, units), overwritten by the next call."""
        return torch.mm(features.T, self.weights, out=self._output)

    def backward(self, delta: Tensor) -> Tensor:
        """(batch, units) to (features, batch), overwritten by the next call."""
        return torch.mm(self.weights, delta.T, out=self._derivatives)


class DenseHidden:
    """The definition: gradient and velocity as dense as the weights."""

    def __init__(self, weights: Tensor, *, batch_size: int, learning_rate: float, momentum: float) -> None:
        self._products = Products(weights, batch_size)
        self.units = weights.shape[1]
        self._velocity = torch.zeros_like(weights)
        self._learning_rate, self._momentum = learning_rate, momentum
        self.forward = self._products.forward

    def learn(self, features: Tensor, delta: Tensor) -> Tensor:
        derivatives = self._products.backward(delta)
        self._velocity.addmm_(features, delta, beta=self._momentum)
        self._products.weights.add_(self._velocity, alpha=-self._learning_rate)
        return derivatives

    def weights(self) -> Tensor:
        return self._products.weights


class KernelProducts:
    """The same products as `Products` by `kernels`, on one core; units are added up to a multiple of LANES."""

    def __init__(self, weights: Tensor, batch_size: int) -> None:
        missing = -weights.shape[1] % kernels.LANES
        self.weights = torch.nn.functional.pad(weights, (0, missing)) if missing else weights.contiguous()
        self.shape = n_features, self.units = self.weights.shape
        self.flat = self.weights.view(-1).numpy()
        self.batch = (0,) * batch_size
        # Units of a batch, as (batch, units) and in the packed order of the kernels.
        self._plain = torch.empty(batch_size, self.units)
        self._packed = torch.empty(batch_size * self.units)
        tiles = self._packed.view(self.units // kernels.LANES, batch_size, kernels.LANES)
        self._tiles = tiles.transpose(0, 1)
        self._part = torch.empty(batch_size * self.units).numpy()
        self.derivatives = torch.empty(n_features, batch_size)

    def pack(self, delta: Tensor) -> np.ndarray:
        self._tiles.copy_(delta.view_as(self._tiles))
        return self._packed.numpy()

    def forward(self, features: Tensor) -> Tensor:
        kernels.forward(self.batch, self.flat, flat(features), self._packed.numpy(), self._part, *self.shape)
        self._plain.view_as(self._tiles).copy_(self._tiles)
        return self._plain

    def backward(self, delta: Tensor) -> Tensor:
        kernels.backward(self.batch, self.flat, self.pack(delta), flat(self.derivatives), *self.shape)
        return self.derivatives


class KernelHidden:
    """The same as `DenseHidden` by `kernels`, where products, velocity and weights are one pass."""

    def __init__(self, weights: Tensor, *, batch_size: int, learning_rate: float, momentum: float) -> None:
        self._products = KernelProducts(weights, batch_size)
        self.units = self._products.units
        # Zeros of PyTorch, which begin at a cache line, where NumPy's do not: a row's registers then fill lines.
        self._velocity = flat(torch.zeros_like(self._products.weights))
        self._sgd = np.float32(momentum), np.float32(-learning_rate)
        self.forward = self._products.forward

    def learn(self, features: Tensor, delta: Tensor) -> Tensor:
        to = self._products
        weights, derivatives = (to.flat, to.pack(delta), flat(to.derivatives)), to.derivatives
        kernels.learn(to.batch, *weights, *to.shape, self._velocity, flat(features), *self._sgd)
        return derivatives

    def weights(self) -> Tensor:
        return self._products.weights


def flat(tensor: Tensor) -> np.ndarray:
    """A contiguous CPU tensor as an array of one axis in the same memory."""
    return tensor.view(-1).numpy()
