"""A training step as the replay of a CUDA graph.

A step is some thirty operations, which take longer to start one by one than a GPU takes to compute them. A graph starts
all of them at once (benchmarks/results/gpu_h100.md).
"""

import logging
from functools import cache

import torch
from torch import Tensor

from mnist_nn import net
from mnist_nn.steps.choose import Step

WARM_UP = 3  # steps before the capture, so that libraries have allocated what they keep
_log = logging.getLogger(__name__)


class Graphed:
    """A step on a GPU whose whole batches are replayed; a smaller batch is computed by the step itself.

    The step must allocate nothing that it needs in a later step.
    """

    def __init__(self, step: Step, batch_size: int) -> None:
        self._step, self._batch_size = step, batch_size
        self._n_whole = 0  # whole batches so far
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, pixels: Tensor, labels: Tensor) -> Tensor:
        """As the step. The sum of losses is a copy, since the next replay overwrites that of the graph."""
        if len(pixels) < self._batch_size:
            return self._step(pixels, labels)
        self._n_whole += 1
        if self._n_whole <= WARM_UP:
            return self._aside(pixels, labels)
        if self._n_whole == WARM_UP + 1:
            self._graph = self._captured(pixels, labels)
        if self._graph is None:
            return self._step(pixels, labels)
        self._pixels.copy_(pixels)
        self._labels.copy_(labels)
        self._graph.replay()
        return self._loss.clone()

    def finish(self) -> net.Weights:
        """The weights after the last step."""
        return self._step.finish()

    def _aside(self, pixels: Tensor, labels: Tensor) -> Tensor:
        """A step on the stream of the capture, which needs a workspace of its own."""
        stream, current = _side_stream(pixels.device), torch.cuda.current_stream(pixels.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            loss = self._step(pixels, labels)
        current.wait_stream(stream)
        return loss

    def _captured(self, pixels: Tensor, labels: Tensor) -> torch.cuda.CUDAGraph | None:
        """The graph of a step, of which nothing is computed yet; None where it cannot be captured."""
        self._pixels, self._labels = pixels.clone(), labels.clone()
        graph, stream = torch.cuda.CUDAGraph(), _side_stream(pixels.device)
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._loss = self._step(self._pixels, self._labels)
        except RuntimeError as error:
            _log.warning("the step cannot be captured, so it takes longer: %s", " ".join(str(error).split())[:300])
            return None
        return graph


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The one stream of this process on which steps warm up and are captured.

    cuBLAS keeps a workspace, of 32 MiB on some GPUs, for every stream that has ever called it.
    """
    return torch.cuda.Stream(device)
