"""The step of several networks of one architecture together, along a leading axis; also of a single one.

It is the step of `mnist_nn.steps.manual`, with one product for all networks where that has one for each. Everything
that it reads lies on the device, even the number of its batch. It takes no arguments and waits for nothing, so on a GPU
it is captured once in a CUDA graph and replayed.

A network without an image in a batch does not learn from it: its momentum is 1 and its learning rate 0. So a network
may have fewer batches than others, have ended, or be missing. The others do not notice it. The shapes of all products,
on which the last bits of a result depend, stay the same.

Shapes below: G networks, B images of a batch, C channels, P positions of the kernel, F = C * P features, U units.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache

import numpy as np
import torch
from torch import Tensor

from mnist_nn import net
from mnist_nn.steps.grouped_hidden import FusedHidden, GroupedHidden, make_hidden, padded_units
from mnist_nn.steps.manual import mask, shapes_side_by_side, views

_log = logging.getLogger(__name__)
WARM_UP = 3  # Steps before a capture, so that libraries have allocated what they keep.


class GroupedStep:
    """SGD with momentum for every network, equal to `AutogradStep` up to rounding.

    Args:
        initial: the weights of each network, all of one architecture, emptied as they come; None for a network that is
            not there. At least one is.
        n_networks: how many `initial` gives.
        images: all networks learn from them, each in an order of its own.
        labels: int64 (n,).
        n_batches: the most of an epoch.
        layer: makes the hidden layers; default: the one that the device is trusted with.
    """

    def __init__(
        self,
        initial: Iterable[net.Weights | None],
        images: net.Images,
        labels: Tensor,
        *,
        n_networks: int,
        n_batches: int,
        batch_size: int,
        learning_rate: float,
        momentum: float,
        layer: Callable[[Tensor, int], GroupedHidden] | None = None,
    ) -> None:
        self.learning_rate, self.momentum = learning_rate, momentum
        self._images, self._labels, self._batch_size = images, labels, batch_size
        hidden: Tensor | None = None
        for number, weights in enumerate(initial):
            if weights is None:
                continue
            if hidden is None:
                self._shapes = {name: weight.shape for name, weight in weights.items()}
                n_units, n_features = self._shapes["hidden.weight"]
                new = weights["conv.bias"].new_zeros
                hidden = new(n_networks, n_features, padded_units(n_units))
                self._allocate(new, n_networks, hidden.shape[2])
            hidden[number, :, :n_units] = weights.pop("hidden.weight").T
            for name, weight in weights.items():
                weight = weight.flatten(1) if name == "conv.weight" else weight
                self._weight_of[name][number, ..., : weight.shape[-1]] = weight
            weights.clear()
        if hidden is None:
            raise ValueError("there is no network to train")
        self._hidden = (layer or make_hidden)(hidden, batch_size)
        self.name = "fused" if isinstance(self._hidden, FusedHidden) else "grouped"

        # What an epoch sets: which image comes when, and its part in the mean of its batch, 0 where it is filling.
        self._order = torch.zeros(n_networks, n_batches * batch_size, dtype=torch.int64, device=hidden.device)
        self._share = new(self._order.shape)
        self._first = self._order.new_zeros(1)  # of the next batch
        self._range = torch.arange(batch_size, device=hidden.device)
        self._total = torch.zeros(n_networks, dtype=torch.float64, device=hidden.device)

    def _allocate(self, new: Callable[..., Tensor], n_networks: int, units: int) -> None:
        """All weights but the hidden layer's, side by side for each network; and the buffers of a step."""
        channels, _, kernel, _ = self._shapes["conv.weight"]
        (n_classes,), (height, width) = self._shapes["output.bias"], self._images.shape
        shapes = shapes_side_by_side(channels, kernel, units, n_classes)
        self._weights, self._velocity = (new(n_networks, sum(map(math.prod, shapes.values()))) for _ in range(2))
        self._weight_of, self._velocity_of = (views(flat, shapes) for flat in (self._weights, self._velocity))
        rows, columns = height - kernel + 1, width - kernel + 1
        self._rows = rows
        self._pixels = new(n_networks, height, width, self._batch_size)
        windows = self._pixels.unfold(1, kernel, 1).unfold(2, kernel, 1)  # (G, rows, columns, B, k, k)
        self._windows = windows.permute(0, 4, 5, 1, 2, 3)
        self._unfolded = new(n_networks, kernel, kernel, rows, columns, self._batch_size)
        self._convolved = new(n_networks, channels, rows * columns * self._batch_size)
        self._minus_one = new(n_networks, self._batch_size, 1).fill_(-1)

    def begin(self, orders: Mapping[int, np.ndarray]) -> None:
        """Set the images of an epoch, (n_g,) int64 in the order they come, for each network that learns in it."""
        order, share = (np.zeros(self._order.shape, dtype) for dtype in (np.int64, np.float64))
        for number, images in orders.items():
            order[number], share[number] = filled(images, self._batch_size, order.shape[1])
        self._order.copy_(torch.from_numpy(order))
        self._share.copy_(torch.from_numpy(share))
        self._first.zero_()
        self._total.zero_()

    def losses(self) -> list[float]:
        """Sum of the losses of each network since `begin`, each before its step. Waits for the device."""
        return self._total.tolist()

    @torch.inference_mode()
    def __call__(self) -> None:
        """Learn from the next batch of the epoch."""
        weight, here = self._weight_of, self._first + self._range
        images, share = self._order.index_select(1, here), self._share.index_select(1, here)  # (G, B)
        target = self._labels.index_select(0, images.view(-1)).view(*images.shape, 1)
        pixels = net.normalised(self._images.pixels.index_select(0, images.view(-1)), self._images.max_pixel)
        self._pixels.copy_(pixels.view(*images.shape, *pixels.shape[1:]).permute(0, 2, 3, 1))
        self._unfolded.copy_(self._windows)
        unfolded = self._unfolded.view(len(images), weight["conv.weight"].shape[2], -1)
        torch.baddbmm(weight["conv.bias"][:, :, None], weight["conv.weight"], unfolded, out=self._convolved)
        features = self._convolved.relu_().view(len(images), -1, self._batch_size)
        units = self._hidden.forward(features).add_(weight["hidden.bias"][:, None]).relu_()
        logits = torch.baddbmm(weight["output.bias"][:, None], units, weight["output.weight"].mT)
        log_probabilities = logits.log_softmax(2)  # (G, B, classes)
        self._total.sub_(log_probabilities.gather(2, target)[:, :, 0].masked_fill_(share == 0, 0).sum(1))

        learns = (share[:, 0] > 0).to(share.dtype)
        momentum, minus_rate = learns * self.momentum + (1 - learns), learns * -self.learning_rate
        delta_output = log_probabilities.exp_().scatter_add_(2, target, self._minus_one).mul_(share[:, :, None])
        delta_hidden = torch.bmm(delta_output, weight["output.weight"])
        mask(delta_hidden, units, delta_hidden)
        delta_convolved = self._hidden.learn(features, delta_hidden, momentum, minus_rate).view_as(self._convolved)
        mask(delta_convolved, self._convolved, delta_convolved)

        velocity = self._velocity_of
        self._velocity.mul_(momentum[:, None])
        velocity["output.weight"].baddbmm_(delta_output.mT, units)
        velocity["output.bias"].add_(delta_output.sum(1))
        velocity["hidden.bias"].add_(delta_hidden.sum(1))
        # Of every row of positions by itself, as libraries do not divide the long sums of a batched product.
        delta_rows = delta_convolved.view(*weight["conv.bias"].shape, self._rows, -1).transpose(1, 2)
        unfolded_rows = unfolded.view(*unfolded.shape[:2], self._rows, -1).permute(0, 2, 3, 1)
        velocity["conv.weight"].add_(torch.matmul(delta_rows, unfolded_rows).sum(1))
        velocity["conv.bias"].add_(delta_convolved.sum(2))
        self._weights.addcmul_(self._velocity, minus_rate[:, None])
        self._first.add_(self._batch_size)

    def replayed(self) -> Callable[[], None]:
        """The step as the replay of a CUDA graph; on a CPU the step itself. The networks are as they were."""
        device = self._order.device
        if device.type != "cuda":
            return self
        stream = _side_stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.begin({})  # An epoch without an image, from which nothing is learned.
                self()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self()
        except RuntimeError as error:
            _log.warning("the step cannot be captured, so it takes longer: %s", " ".join(str(error).split())[:300])
            return self
        return graph.replay

    def finish(self, number: int) -> net.Weights:
        """The weights of a network after the last step it learned in, as views of the step's own."""
        units = self._shapes["hidden.weight"][0]
        weight = {name: each[number] for name, each in self._weight_of.items()}
        weight["conv.weight"] = weight["conv.weight"].view(self._shapes["conv.weight"])
        weight["hidden.weight"] = self._hidden.weights[number, :, :units].T
        weight["hidden.bias"] = weight["hidden.bias"][:units]
        weight["output.weight"] = weight["output.weight"][:, :units]
        return {name: weight[name] for name in self._shapes}


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The one stream of this process on which steps warm up and are captured.

    cuBLAS keeps a workspace, of 32 MiB on some GPUs, for every stream that has ever called it.
    """
    return torch.cuda.Stream(device)


def filled(images: np.ndarray, batch_size: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of an epoch filled up to whole batches, and the part of each image in the mean of its batch.

    The last batch is filled with its own first image, which cannot overflow where the batch does not.

    Args:
        images: int64 (n,), at least one.
        batch_size: images of a step.
        length: a multiple of the batch size, at least n.

    Returns:
        int64 (length,) and float64 (length,), 0 for what is filling.
    """
    n, start = len(images), (len(images) - 1) // batch_size * batch_size
    order = np.full(length, images[start])
    order[:n] = images
    share = np.zeros(length)
    share[:start] = 1 / batch_size
    share[start:n] = 1 / (n - start)
    return order, share
