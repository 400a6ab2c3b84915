"""Random networks, and images to learn from."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from mnist_nn import net

TOLERANCE = 5e-6  # Relative difference of a loss, of any step of 200.


def architecture(seed, largest=(32, 200)):
    """A random network on 12 x 12 images, with a learning rate and momentum of the search's own ranges."""
    random = np.random.default_rng(seed)
    return {
        "n_conv_layer": int(random.integers(1, largest[0])),
        "kernel_size": int(random.integers(2, 11)),
        "n_hidden_layer": int(random.integers(1, largest[1])),
        "learning_rate": float(10 ** random.uniform(-5, -1)),
        "momentum": float(10 ** random.uniform(-2, 0)),
    }


def batches(seed, n_steps, batch_size, shape=(12, 12)):
    """Images of noise around one pattern per class, so that there is something to learn; the last batch is smaller."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(10, *shape, generator=generator)
    for step in range(n_steps):
        n = batch_size if step < n_steps - 1 else max(1, batch_size - 3)
        labels = torch.randint(10, (n,), generator=generator)
        yield patterns[labels] + torch.randn(n, *shape, generator=generator), labels


class AutogradStep:
    """A step of SGD with momentum in plain PyTorch, called as `mnist_nn.steps.manual.ManualStep` is: its reference."""

    def __init__(self, weights, *, learning_rate, momentum):
        self.weights = {name: weight.requires_grad_() for name, weight in weights.items()}
        self.optimizer = torch.optim.SGD(self.weights.values(), lr=learning_rate, momentum=momentum)

    def __call__(self, pixels, labels):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(net.logits(self.weights, pixels), labels)
        loss.backward()
        self.optimizer.step()
        return loss.detach() * len(pixels)

    def finish(self):
        return {name: weight.detach() for name, weight in self.weights.items()}


def autograd_step(weights, image_shape, *, batch_size, learning_rate, momentum):
    """Instead of `mnist_nn.steps.manual.make_step`."""
    return AutogradStep(weights, learning_rate=learning_rate, momentum=momentum)
