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

    Attributes:
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


class DenseHidden:
    """The definition, by PyTorch's products: for any device, batch size and number of threads."""

    def __init__(self, weights: Tensor, *, batch_size: int, learning_rate: float, momentum: float) -> None:
        self._weights, self.units = weights, weights.shape[1]
        self._velocity = torch.zeros_like(weights)
        self._learning_rate, self._momentum = learning_rate, momentum
        self._output = weights.new_empty(batch_size, self.units)
        self._derivatives = weights.new_empty(len(weights), batch_size)

    def forward(self, features: Tensor) -> Tensor:
        return torch.mm(features.T, self._weights, out=self._output)

    def learn(self, features: Tensor, delta: Tensor) -> Tensor:
        derivatives = torch.mm(self._weights, delta.T, out=self._derivatives)
        self._velocity.addmm_(features, delta, beta=self._momentum)
        self._weights.add_(self._velocity, alpha=-self._learning_rate)
        return derivatives

    def weights(self) -> Tensor:
        return self._weights


class KernelHidden:
    """The same by `kernels`, on one core, where derivatives, velocity and weights are one pass.

    Units are added up to a multiple of LANES.
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


def flat(tensor: Tensor) -> np.ndarray:
    """A contiguous CPU tensor as an array of one axis in the same memory."""
    return tensor.view(-1).numpy()
