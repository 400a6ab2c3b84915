"""The training itself: what each of its processes does once it has found the others.

The order of the images depends on the seed and the epoch alone. It is cut into global batches, and each global batch
into one part per process, so one process with batches of 128 and two with 64 take the same steps. If a batch cannot be
divided evenly, the parts differ in size. So each process scales the sum of its losses. Then the mean of the processes'
gradients is the gradient of the global batch's mean loss.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from common.data import N_CLASSES
from mnist_nn.net import Images
from mnist_nn.network import Network
from mnist_nn.parallel.checkpoint import Begun, Checkpoint
from mnist_nn.parallel.log import Epoch, Log, Share
from mnist_nn.parallel.optimizer import make_optimizer, rate_of, whole_state, wrap_model
from mnist_nn.parallel.rendezvous import RankInfo
from mnist_nn.parallel.settings import Settings
from mnist_nn.shapes import Params
from mnist_nn.training import prepare
from mpitune.experiment import Data

TEST_BATCH = 1000  # test images that a process evaluates at a time
AMP = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Part(NamedTuple):
    """This process's part of a global batch: int64 indices, at least one; what each of its losses counts; the whole.

    Where there are more processes than images, some take the first image with weight 0: all take part in every step.
    """

    indices: Tensor
    weight: float
    n_global: int


def parts(order: Tensor, batch_size: int, *, rank: int, size: int) -> Iterator[Part]:
    """The part of process `rank` of each global batch of batch_size * size images, the last one smaller."""
    for batch in order.split(batch_size * size):
        own = batch.tensor_split(size)[rank]
        yield Part(own, 1.0, len(batch)) if len(own) else Part(batch[:1], 0.0, len(batch))


def order_of(n: int, seed: int, epoch: int) -> Tensor:
    """int64 (n,): the images in the order of that epoch, the same in every process."""
    return torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(n))


class DistributedTraining:
    """A network spread over the processes of the default process group, and its optimizer."""

    def __init__(
        self, settings: Settings, params: Params, rank_info: RankInfo, device: torch.device, arrays: Data
    ) -> None:
        """All processes must construct this together, with the complete settings and the arrays of rank 0."""
        prepare(device)
        torch.backends.cudnn.deterministic = False  # on an H100 it made gradients wrong by 1e-3
        torch.manual_seed(settings.seed)
        self.settings, self.rank_info, self.device = settings, rank_info, device
        there = {name: torch.tensor(array, device=device) for name, array in arrays.items()}
        self._images = {part: Images(there[f"{part}_images"], settings.max_pixel) for part in ("train", "test")}
        self._labels = {part: there[f"{part}_labels"].long() for part in ("train", "test")}
        self._module = Network(params, self._images["train"].shape, N_CLASSES).to(device)
        self.network = wrap_model(self._module, device)
        self._weights = dict(self._module.named_parameters())
        self.optimizer = make_optimizer(self._weights.values(), settings)
        self._scaler = torch.amp.GradScaler(device.type, enabled=settings.amp == "fp16")
        self.epochs: list[Epoch] = []
        self.begun = Begun()
        self.n_done = 0  # steps
        self._set_length()

    def epoch(self, log: Log | None, keep: Callable[[], None] = lambda: None) -> Epoch:
        """Train for one epoch, or for what is left of it, and evaluate. `keep` is called where a checkpoint is due.

        Raises FloatingPointError in all processes where the loss is not finite.
        """
        number, start = len(self.epochs) + 1, time.perf_counter()
        n_images, n_before = len(self._labels["train"]), self.begun.images
        order = order_of(n_images, self.settings.seed, number).to(self.device)
        for images, is_kept in self._blocks(order[n_before:]):
            self._block(images, number, log)
            if is_kept:
                keep()
        training_seconds = time.perf_counter() - start
        test_loss, accuracy = self.evaluate()
        seconds, speed = time.perf_counter() - start, (n_images - n_before) / training_seconds
        done = Epoch(number, self.begun.loss / n_images, test_loss, accuracy, speed, seconds)
        self.epochs.append(done)
        self.begun = Begun()
        return done

    def _blocks(self, order: Tensor) -> Iterator[tuple[Tensor, bool]]:
        """What is left of an epoch, cut where a loss is logged or a checkpoint is due, and whether one is."""
        step, interval, every = self.begun.steps, self.settings.log_interval, self.settings.checkpoint_steps
        while len(order):
            to_log = interval - step % interval
            to_keep = every - self.n_done % every if every else to_log + 1
            n = min(to_log, to_keep) * self.settings.images_per_step(self.rank_info.size)
            images, order, step = order[:n], order[n:], step + min(to_log, to_keep)
            yield images, to_keep <= to_log and len(order) > 0

    def _block(self, images: Tensor, epoch: int, log: Log | None) -> None:
        """Learn from these images, add their losses to those of the epoch, and log them."""
        start, all_take_all = time.perf_counter(), self.settings.samples == "all"
        taken = self._whole(images) if all_take_all else self._parts(images, self.settings.batch_size)
        losses = self.steps(taken)
        figures = self._figures(taken[-1])
        own = float(losses.sum()) if self.settings.print_steps else 0.0
        dist.all_reduce(losses)
        total, before = math.fsum(losses.tolist()), self.begun
        self.begun = Begun(before.images + len(images), before.steps + len(losses), before.loss + total)
        if log:
            log.block(epoch, self.begun.steps, self.n_done, loss=total / len(images), **figures)
        if self.settings.print_steps:
            layers = figures.get("activations", {})
            ranges = {layer: (each["min"], each["max"]) for layer, each in layers.items()}
            n_images = sum(len(part.indices) * part.weight for part in taken)
            shares = [Share(socket.gethostname(), own, n_images, ranges)] * self.rank_info.size
            dist.all_gather_object(shares, shares[0])
            if log:
                log.hosts(shares, epoch, self.begun.steps, figures["learning_rate"], time.perf_counter() - start)
        if not math.isfinite(total):
            raise FloatingPointError(f"the loss is not finite in step {self.begun.steps} of epoch {epoch}")

    def _parts(self, order: Tensor, batch_size: int) -> list[Part]:
        return list(parts(order, batch_size, rank=self.rank_info.rank, size=self.rank_info.size))

    def _whole(self, order: Tensor) -> list[Part]:
        """Batches that all processes take, each counted once."""
        batches = parts(order, self.settings.batch_size, rank=0, size=1)
        return [batch._replace(weight=1 / self.rank_info.size) for batch in batches]

    def steps(self, taken: list[Part]) -> Tensor:
        """A step for each part. Returns float64 (n_steps,): this process's sum of losses of each."""
        indices = torch.cat([part.indices for part in taken])
        sizes = [len(part.indices) for part in taken]
        pixels = self._images["train"][indices].normalised().split(sizes)
        labels = self._labels["train"][indices].split(sizes)
        self.network.train()
        losses = []
        for part, x, y in zip(taken, pixels, labels, strict=True):
            for group in self.optimizer.param_groups:
                group["lr"] = rate_of(self.settings, self.n_done, self._n_steps)
            losses.append(self._gradient(part, x, y))
            self._scaler.step(self.optimizer)  # where gradients are not scaled this is just a step
            self._scaler.update()
            self.n_done += 1
        return torch.stack(losses).double()

    def _gradient(self, part: Part, pixels: Tensor, labels: Tensor) -> Tensor:
        """Make the gradient of the global batch's mean loss; returns the sum of the part's losses."""
        self.optimizer.zero_grad()
        loss = part.weight * F.cross_entropy(self._logits(pixels), labels, reduction="sum")
        mean = loss * (self.rank_info.size / part.n_global)  # of which the mean over the processes is taken
        self._scaler.scale(mean).backward()
        return loss.detach()

    def _logits(self, pixels: Tensor) -> Tensor:
        kind = self.settings.amp
        with torch.autocast(self.device.type, AMP[kind]) if kind else nullcontext():
            return self.network(pixels).float()

    def _figures(self, part: Part) -> dict[str, Any]:
        """What is logged beside the loss: the last learning rate, and statistics where they are wanted.

        These are the Euclidean norm of the gradient of each weight and of all, of the global batch's mean loss; and
        of what each layer puts out mean, standard deviation, fraction of zeros, least and largest.
        """
        figures: dict[str, Any] = {"learning_rate": self.optimizer.param_groups[0]["lr"]}
        if not self.settings.statistics:
            return figures
        norms = {name: float(weight.grad.norm()) for name, weight in self._weights.items() if weight.grad is not None}
        self._module.seen = seen = dict[str, Tensor]()
        with torch.no_grad():
            self._logits(self._images["train"][part.indices].normalised())
        self._module.seen = None
        return {
            **figures,
            "gradients": {"all": math.hypot(*norms.values()), **norms},
            "activations": {name: _spread(out.float()) for name, out in seen.items()},
        }

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Mean cross-entropy per test image, and the fraction told right; every image counts once."""
        self.network.eval()
        images, labels = self._images["test"], self._labels["test"]
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        everything = torch.arange(len(labels), device=self.device)
        for part in self._parts(everything, TEST_BATCH):
            logits = self._logits(images[part.indices].normalised())
            truth = labels[part.indices]
            loss = F.cross_entropy(logits, truth, reduction="sum")
            right = (logits.argmax(1) == truth).sum()
            sums += part.weight * torch.stack([loss, right]).double()
        dist.all_reduce(sums)
        loss, right = (sums / len(labels)).tolist()
        return loss, right

    def state(self) -> Checkpoint:
        """All there is to continue from, in rank 0; weights and moments may be those of the training itself.

        All processes must call this.
        """
        weights, moments = self._module.state_dict(), whole_state(self.optimizer, self.settings.strategy)
        return Checkpoint(list(self.epochs), self.n_done, weights, moments, self._scaler.state_dict(), self.begun)

    def restore(self, state: Checkpoint) -> None:
        """Continue from there. All processes must call this, each with the whole state."""
        self.epochs, self.begun, self.n_done = list(state.epochs), state.begun, state.steps
        self._module.load_state_dict(state.weights)
        self.optimizer.load_state_dict(state.optimizer)
        self._scaler.load_state_dict(state.scaler)
        self._set_length()

    def _set_length(self) -> None:
        """How many steps the training has, those done included; with another number of processes the rest changes."""
        per_step, n_images = self.settings.images_per_step(self.rank_info.size), len(self._labels["train"])
        epochs = self.settings.epochs - len(self.epochs)
        self._n_steps = self.n_done + max(0, epochs - 1) * math.ceil(n_images / per_step)
        self._n_steps += math.ceil((n_images - self.begun.images) / per_step) if epochs > 0 else 0


def _spread(out: Tensor) -> dict[str, float]:
    low, high = out.aminmax()
    zeros = float((out == 0).float().mean())
    return {"mean": float(out.mean()), "std": float(out.std()), "zeros": zeros, "min": float(low), "max": float(high)}
