"""The hidden layer's update, deferred: weights kept as a base minus a window of low-rank terms.

The gradient of step s is the product of two thin matrices, a_s (features, batch) and d_s (batch, units).
With momentum m and learning rate r, the weights are a base W that has taken up all steps before the window and

    W - r * sum_s c(age of s) a_s d_s,        c(age) = (1 - m^age) / (1 - m),

where the age of a step is 1 right after it. There is neither gradient nor velocity: a step reads W twice and
writes nothing of its size. Products with the window cost little while it is short against the units.
Steps whose c has come within rounding of its limit 1 / (1 - m) are folded into W, a block at a time,
by one matrix product. Exact up to rounding for any momentum, but the window grows with it.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from mnist_nn.steps.hidden import KernelProducts, Products

BLOCK = 16  # Steps folded at a time.


def steps_to_settle(momentum: float) -> int:
    """The age from which momentum^age is below float32's rounding, 2^-24."""
    return math.ceil(-24 / math.log2(momentum)) if momentum > 0 else 1


def blocks_of(momentum: float) -> int:
    """Number of blocks in the window: the one being filled, and those that have not settled."""
    return 1 + math.ceil(steps_to_settle(momentum) / BLOCK)


class DeferredHidden:
    """Weights (features, units) learning by SGD with momentum; see `mnist_nn.steps.hidden.Hidden`.

    A block of the window is itself a matrix (features, columns), one column per image of its BLOCK steps,
    and has the same two products as the base.
    """

    def __init__(
        self,
        weights: Tensor,
        products: Callable[[Tensor, int], Products | KernelProducts],
        *,
        batch_size: int,
        learning_rate: float,
        momentum: float,
    ) -> None:
        self._base = products(weights, batch_size)
        n_features, self.units = self._base.weights.shape
        self._batch, columns = batch_size, BLOCK * batch_size
        new, n_blocks = weights.new_zeros, blocks_of(momentum)
        self._features = [products(new(n_features, columns), batch_size) for _ in range(n_blocks)]
        self._deltas = [new(self._features[0].units, self.units) for _ in range(n_blocks)]
        self._settled = steps_to_settle(momentum)
        self._n_steps = self._n_folded = 0
        # -rate * c(age) for each image, from the oldest step there can be to those of a block still to come.
        ages = torch.arange(n_blocks * BLOCK, -BLOCK, -1, dtype=torch.float64).clamp_min_(0)
        self._coefficients = -learning_rate * (1 - momentum**ages) / (1 - momentum)
        self._coefficients = self._coefficients.to(new(0)).repeat_interleave(batch_size)

    def forward(self, features: Tensor) -> Tensor:
        self._fold()
        output = self._base.forward(features)
        for old, deltas, coefficients in self._window():
            output.addmm_(old.forward(features).mul_(coefficients), deltas)
        return output

    def learn(self, features: Tensor, delta: Tensor) -> Tensor:
        derivatives = self._base.backward(delta)
        for old, deltas, coefficients in self._window():
            derivatives.add_(old.backward((delta @ deltas.T).mul_(coefficients)))
        block, step = divmod(self._n_steps, BLOCK)
        slot, here = block % len(self._features), slice(step * self._batch, (step + 1) * self._batch)
        self._features[slot].weights[:, here] = features
        self._deltas[slot][here] = delta
        self._n_steps += 1
        return derivatives

    def _window(self) -> Iterator[tuple[Products | KernelProducts, Tensor, Tensor]]:
        """Features, deltas and coefficients (columns,) of every block that holds steps, the oldest first."""
        for block in range(self._n_folded, -(-self._n_steps // BLOCK)):
            features, deltas = (kept[block % len(kept)] for kept in (self._features, self._deltas))
            age = self._n_steps - block * BLOCK  # of the block's first step
            start = (len(self._features) * BLOCK - age) * self._batch
            yield features, deltas, self._coefficients[start : start + features.units]

    def _fold(self) -> None:
        """Fold the oldest block once its last step has settled."""
        if self._n_steps == (self._n_folded + 1) * BLOCK + self._settled:
            features, deltas, coefficients = next(self._window())
            self._base.weights.addmm_(features.weights, deltas * coefficients[:, None])
            self._n_folded += 1

    def weights(self) -> Tensor:
        for features, deltas, coefficients in self._window():
            self._base.weights.addmm_(features.weights, deltas * coefficients[:, None])
        return self._base.weights
