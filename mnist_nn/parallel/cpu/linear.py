"""A linear layer by oneDNN, on the CPU.

PyTorch multiplies float32 matrices by MKL, which took twice oneDNN's time at (64, 800) x (800, 500) on an AMD EPYC.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x @ weight.T + bias, float32, for x (n, features), weight (units, features) and bias (units,)."""
    return _Linear.apply(x, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        context.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = context.saved_tensors
        return _product(gradient, weight.t()), _product(gradient.t(), x.t()), gradient.sum(0)


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a @ b.T + bias. The operation is one that torch.compile generates calls of, and has no public name."""
    return torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
