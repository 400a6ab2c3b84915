"""A training step as the replay of a CUDA graph.

A step is some thirty operations, which take longer to start one by one than a GPU takes to compute them. A graph starts
all of them at once (benchmarks/results/gpu_h100.md). It has the memory and the rates of one step: trainings that have
the same, as the folds of a parameter set, share it.
"""

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mnist_nn import net
from mnist_nn.shapes import Params, shapes_of
from mnist_nn.steps.manual import ManualStep, make_step

WARM_UP = 3  # steps before the capture, so that libraries have allocated what they keep
_log = logging.getLogger(__name__)


class Graphed:
    """A step on a GPU whose whole batches are replayed; a smaller batch is computed by the step itself.

    The step must allocate nothing that it needs in a later step. It learns from images of zeros until it is captured:
    weights are for who loads them afterwards. So all whole batches of a training are replays, the first ones too, and
    its bits do not depend on whether the graph was there before.
    """

    def __init__(self, step: ManualStep, image_shape: tuple[int, int], batch_size: int, device: torch.device) -> None:
        self._step, self._batch_size = step, batch_size
        self.load, self.finish = step.load, step.finish
        self._pixels = torch.zeros(batch_size, *image_shape, device=device)
        self._labels = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self._graph = self._captured()

    def __call__(self, pixels: Tensor, labels: Tensor) -> Tensor:
        """As the step. The sum of losses is a copy, since the next replay overwrites that of the graph."""
        if len(pixels) < self._batch_size or self._graph is None:
            return self._step(pixels, labels)
        self._pixels.copy_(pixels)
        self._labels.copy_(labels)
        self._graph.replay()
        return self._loss.clone()

    @property
    def hidden(self) -> Tensor | None:
        """See `ManualStep.hidden`."""
        return self._step.hidden

    def _captured(self) -> torch.cuda.CUDAGraph | None:
        """The graph of a step; None where it cannot be captured."""
        device = self._pixels.device
        graph, stream, current = torch.cuda.CUDAGraph(), _side_stream(device), torch.cuda.current_stream(device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):  # which needs a workspace of its own
            for _ in range(WARM_UP):
                self._step(self._pixels, self._labels)
        current.wait_stream(stream)
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._loss = self._step(self._pixels, self._labels)
        except RuntimeError as error:
            _log.warning("the step cannot be captured, so it takes longer: %s", " ".join(str(error).split())[:300])
            return None
        return graph


class Prepared:
    """The step of the last training, with which the next one goes on if device, shapes and rates are the same.

    The weights that a training has returned are overwritten by the next one. Its bits are those of a new step.
    """

    def __init__(self) -> None:
        self._key: object = None
        self._step: ManualStep | Graphed | None = None

    def step(
        self,
        params: Params,
        image_shape: tuple[int, int],
        n_classes: int,
        *,
        seed: int,
        device: torch.device,
        **sgd: Any,
    ) -> ManualStep | Graphed:
        """A step with initial weights of that seed. sgd: batch_size, learning_rate and momentum."""
        shapes = shapes_of(params, image_shape, n_classes)
        key = shapes, image_shape, device, sgd
        if self._step is None or key != self._key:
            self.forget()  # first, so that memory never holds two
            new = {name: torch.zeros(shape[::-1], device=device) for name, shape in shapes.items()}
            weights = {name: weight.permute(*reversed(range(weight.ndim))) for name, weight in new.items()}
            del new
            step = make_step(weights, image_shape, **sgd)
            self._step = Graphed(step, image_shape, sgd["batch_size"], device) if device.type == "cuda" else step
            self._key = key
        hidden = self._step.hidden
        self._step.load(net.initial_weights(params, image_shape, n_classes, seed=seed, device=device, hidden=hidden))
        return self._step

    def forget(self) -> None:
        """Free the memory of the step."""
        self._key = self._step = None

    def make_room(self, device: torch.device) -> None:
        """Give the GPU's memory back unless more than half is free: other processes may use it, too."""
        free, total = torch.cuda.mem_get_info(device)
        if free < total // 2:
            self.forget()
            torch.cuda.empty_cache()


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The one stream of this process on which steps warm up and are captured.

    cuBLAS keeps a workspace, of 32 MiB on some GPUs, for every stream that has ever called it.
    """
    return torch.cuda.Stream(device)
