"""The hidden layers of several networks, with a leading axis for these; compare `mnist_nn.steps.hidden`."""

import torch
from torch import Tensor

from mnist_nn.trust import trusted_ways

ALIGNED = 16  # Units are filled up to a multiple of this, so that every row begins at a whole sector of 32 bytes.
LARGEST_BATCH = 32  # Of the fused kernel: a larger batch has arithmetic enough for PyTorch's products.


def padded_units(n_units: int) -> int:
    """The number of units, filled up to a multiple of ALIGNED."""
    return n_units + -n_units % ALIGNED


class GroupedHidden:
    """Weights (G, features, units) learning by SGD with momentum, by PyTorch's products on any device."""

    def __init__(self, weights: Tensor, batch_size: int) -> None:
        n_networks, n_features, n_units = weights.shape
        self.weights, self.velocity = weights, torch.zeros_like(weights)
        self._units = weights.new_empty(n_networks, batch_size, n_units)
        self.derivatives = weights.new_empty(n_networks, n_features, batch_size)

    def forward(self, features: Tensor) -> Tensor:
        """(G, features, batch) to (G, batch, units), overwritten by the next call."""
        return _product(features.mT, self.weights, self._units)

    def learn(self, features: Tensor, delta: Tensor, momentum: Tensor, minus_rate: Tensor) -> Tensor:
        """Learn from one batch: velocity = momentum * velocity + gradient, weights += minus_rate * velocity.

        Args:
            features: (G, features, batch), as `forward` had them.
            delta: (G, batch, units), the loss's derivatives with respect to the output of `forward`.
            momentum: (G,), of each network.
            minus_rate: (G,), the learning rate of each network, negated.

        Returns:
            The loss's derivatives with respect to the features, (G, features, batch), overwritten by the next call.
        """
        derivatives = _product(self.weights, delta.mT, self.derivatives)
        self.velocity.mul_(momentum[:, None, None]).baddbmm_(features, delta)
        self.weights.addcmul_(self.velocity, minus_rate[:, None, None])
        return derivatives


class FusedHidden(GroupedHidden):
    """The same by the kernels of `triton_kernel`, where `learn` is one pass over weights and velocity."""

    def __init__(self, weights: Tensor, batch_size: int) -> None:
        from mnist_nn.steps import triton_kernel

        super().__init__(weights, batch_size)
        self._kernel = triton_kernel
        n_parts, _ = triton_kernel.parts_of(*weights.shape[1:])
        self._sums = weights.new_empty(n_parts, *self._units.shape)

    def forward(self, features: Tensor) -> Tensor:
        return self._kernel.forward(self.weights, features, self._sums, self._units)

    def learn(self, features: Tensor, delta: Tensor, momentum: Tensor, minus_rate: Tensor) -> Tensor:
        self._kernel.learn(self.weights, self.velocity, features, delta, self.derivatives, momentum, minus_rate)
        return self.derivatives


def make_hidden(weights: Tensor, batch_size: int) -> GroupedHidden:
    """The fused layer on a GPU whose kernels have proved themselves there."""
    fused = weights.device.type == "cuda" and batch_size <= LARGEST_BATCH and "fused" in trusted_ways(batch_size)
    return (FusedHidden if fused else GroupedHidden)(weights, batch_size)


def _product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """a @ b. A single product is not asked for as a batch of one, for which libraries do not divide long sums."""
    if len(a) > 1:
        return torch.bmm(a, b, out=out)
    torch.mm(a[0], b[0], out=out[0])
    return out
