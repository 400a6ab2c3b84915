"""Random networks, images to learn from, and their training by the steps under test and by autograd."""

from __future__ import annotations

import numpy as np
import torch

from mnist_nn import net
from mnist_nn.steps.autograd import AutogradStep
from mnist_nn.steps.grouped import GroupedStep

CPU = torch.device("cpu")
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


def pictures(n, seed=8, device=CPU):
    """Normalised images (n, 12, 12) in which there is something to learn, and their labels."""
    x, y = (torch.cat(parts) for parts in zip(*batches(seed, -(-n // 10) + 1, 10), strict=True))
    return x[:n].to(device), y[:n].to(device)


def stepped(params, orders, x, y, *, batch_size=10, dtype=torch.float32, replayed=False):
    """Mean loss of each step, (steps, networks), of networks that learn in these orders, and their weights."""
    n_batches = -(-max(map(len, orders)) // batch_size)
    step = GroupedStep(
        (initial(params, number, dtype, x.device) for number in range(len(orders))),
        net.Images(x.to(dtype)),
        y,
        n_networks=len(orders),
        n_batches=n_batches,
        batch_size=batch_size,
        learning_rate=params["learning_rate"],
        momentum=params["momentum"],
    )
    learn = step.replayed() if replayed else step
    step.begin(dict(enumerate(orders)))
    sums = np.zeros((n_batches + 1, len(orders)))
    for number in range(n_batches):
        learn()
        sums[number + 1] = step.losses()
    return np.diff(sums, axis=0), [step.finish(number) for number in range(len(orders))]


def initial(params, number, dtype, device):
    weights = net.initial_weights(params, (12, 12), 10, seed=number, device=device)
    return {name: weight.to(dtype) for name, weight in weights.items()}


def alone(params, number, order, x, y, *, batch_size=10, dtype=torch.float32):
    """The same of one network, by autograd."""
    weights = initial(params, number, dtype, x.device)
    step = AutogradStep(weights, learning_rate=params["learning_rate"], momentum=params["momentum"])
    parts = torch.from_numpy(order).to(x.device).split(batch_size)
    return np.array([float(step(x[part].to(dtype), y[part])) for part in parts]), step.finish()
