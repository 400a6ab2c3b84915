"""The training itself: what each of its processes does once it has found the others.

The order of the images depends on the seed and the epoch alone. It is cut into global batches, and each global batch
into one part per process, so one process with batches of 128 and two with 64 take the same steps. If a batch cannot be
divided evenly, the parts differ in size. So each process scales the sum of its losses. Then the mean of the processes'
gradients is the gradient of the global batch's mean loss.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from common.data import N_CLASSES
from mnist_nn.net import Images
from mnist_nn.parallel.checkpoint import Checkpoint
from mnist_nn.parallel.log import Epoch, Log
from mnist_nn.parallel.networks import build
from mnist_nn.parallel.optimizer import Rule, make_optimizer, set_updates, updates
from mnist_nn.parallel.rendezvous import RankInfo
from mnist_nn.parallel.statistics import activation_statistics, gradient_statistics
from mnist_nn.parallel.strategy import distribute_like, full_tensor, wrap_model
from mnist_nn.shapes import Params
from mnist_nn.training import prepare

AMP = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Part(NamedTuple):
    """This process's part of a global batch: int64 indices, at least one; what each of its losses counts; the whole.

    Where there are more processes than images, some take the first image with weight 0: all take part in every step.
    """

    indices: Tensor
    weight: float
    n_global: int


class Block(NamedTuple):
    """Steps of an epoch, up to `step`: their n_images, float64 (n_steps,) losses and the work of adding those up.

    Attributes:
        total_steps: of all epochs until there.
        figures: what else is to be logged.
    """

    epoch: int
    step: int
    n_images: int
    losses: Tensor
    adding: Any
    total_steps: int
    figures: dict[str, Any]

    def done(self, log: Log | None) -> float:
        """The sum of all losses. Raises FloatingPointError in all processes where it is not finite."""
        self.adding.wait()
        total = math.fsum(self.losses.tolist())
        if log:
            log.block(self.epoch, self.step, self.total_steps, loss=total / self.n_images, **self.figures)
        if not math.isfinite(total):
            raise FloatingPointError(f"the loss is not finite in step {self.step} of epoch {self.epoch}")
        return total


class TrainingData(NamedTuple):
    """Images uint8 and labels int64 (n,) of the training, on its device."""

    train_images: Images
    train_labels: Tensor
    test_images: Images
    test_labels: Tensor


class DistributedOptions(NamedTuple):
    """What all processes of a training have in common.

    Attributes:
        batch_size, test_batch_size: images of each process.
        rule: how weights are updated.
        seed: of the initial weights and the order of images.
        strategy: "ddp" or "fsdp".
        amp: "bf16", "fp16" or None.
        compile: by torch.compile.
        log_interval: steps from one line of the log to the next.
        statistics: log those of gradients and activations.
        epochs: of the whole training, which its schedule depends on.
    """

    batch_size: int
    test_batch_size: int
    rule: Rule
    seed: int
    strategy: str = "ddp"
    amp: str | None = None
    compile: bool = False
    log_interval: int = 10
    statistics: bool = False
    epochs: int = 1


def parts(order: Tensor, batch_size: int, *, rank: int, size: int) -> Iterator[Part]:
    """The part of process `rank` of each global batch of batch_size * size images, the last one smaller."""
    for batch in order.split(batch_size * size):
        mine = batch.tensor_split(size)[rank]
        yield Part(mine, 1.0, len(batch)) if len(mine) else Part(batch[:1], 0.0, len(batch))


def order_of(n: int, seed: int, epoch: int) -> Tensor:
    """int64 (n,): the images in the order of that epoch, the same in every process."""
    return torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(n))


class DistributedTraining:
    """A network spread over the processes of the default process group, and its optimizer."""

    def __init__(
        self,
        options: DistributedOptions,
        params: Params,
        rank_info: RankInfo,
        device: torch.device,
        data: TrainingData,
    ) -> None:
        prepare(device)
        torch.manual_seed(options.seed)
        self.options, self.rank_info, self.device, self.data = options, rank_info, device, data
        self._module = build(params, data.train_images.shape, N_CLASSES).to(device)
        self.network = wrap_model(self._module, options.strategy, device=device)
        self._weights = dict(self._module.named_parameters())
        self._forward = torch.compile(self.network) if options.compile else self.network
        self.optimizer, self._moments = make_optimizer(self._weights, options.rule, plain=options.strategy == "ddp")
        self._scaler = torch.amp.GradScaler(device.type, enabled=options.amp == "fp16")
        self.epochs: list[Epoch] = []
        self.n_done = 0  # steps
        self._set_length()

    def epoch(self, log: Log | None) -> Epoch:
        """Train for one epoch and evaluate. Raises FloatingPointError in all processes where the loss is not finite."""
        number, start = len(self.epochs) + 1, time.perf_counter()
        n_images, total, step = len(self.data.train_labels), 0.0, 0
        order = order_of(n_images, self.options.seed, number).to(self.device)
        per_block = self.options.batch_size * self.rank_info.size * self.options.log_interval
        before: Block | None = None
        for images in order.split(per_block):
            taken = list(parts(images, self.options.batch_size, rank=self.rank_info.rank, size=self.rank_info.size))
            losses, step = self.steps(taken), step + len(taken)
            figures = self._figures(taken[-1])
            adding = dist.all_reduce(losses, async_op=True)
            block = Block(number, step, len(images), losses, adding, self.n_done, figures)
            if before:  # what it has to tell has arrived while this one was computed
                total += before.done(log)
            before = block
        if before:
            total += before.done(log)
        training_seconds = time.perf_counter() - start
        test_loss, accuracy = self.evaluate()
        seconds = time.perf_counter() - start
        done = Epoch(number, total / n_images, test_loss, accuracy, n_images / training_seconds, seconds)
        self.epochs.append(done)
        return done

    def steps(self, taken: list[Part]) -> Tensor:
        """A step for each part. Returns float64 (n_steps,): this process's sum of losses of each."""
        indices = torch.cat([part.indices for part in taken])
        sizes = [len(part.indices) for part in taken]
        pixels = self.data.train_images[indices].normalised().split(sizes)
        labels = self.data.train_labels[indices].split(sizes)
        self.network.train()
        losses = []
        for part, x, y in zip(taken, pixels, labels, strict=True):
            for group in self.optimizer.param_groups:
                group["lr"] = self.options.rule.rate(self.n_done, self._n_steps)
            losses.append(self._gradient(part, x, y))
            self._scaler.step(self.optimizer)  # where gradients are not scaled this is just a step
            self._scaler.update()
            self.n_done += 1
        return torch.stack(losses).double()

    def _gradient(self, part: Part, pixels: Tensor, labels: Tensor) -> Tensor:
        """Make the gradient of the global batch's mean loss; returns the sum of the part's losses."""
        for weight in self._weights.values():  # not the module's zero_grad: FSDP may have other parameters in it now
            weight.grad = None
        loss = part.weight * F.cross_entropy(self._logits(pixels), labels, reduction="sum")
        mean = loss * (self.rank_info.size / part.n_global)  # of which the mean over the processes is taken
        self._scaler.scale(mean).backward()
        return loss.detach()

    def _logits(self, pixels: Tensor) -> Tensor:
        with self._precision():
            return self._forward(pixels).float()

    def _precision(self) -> Any:
        kind = self.options.amp
        return torch.autocast(self.device.type, AMP[kind]) if kind else nullcontext()

    def _figures(self, part: Part) -> dict[str, Any]:
        """What is logged beside the loss: the last learning rate, and statistics where they are wanted."""
        figures: dict[str, Any] = {"learning_rate": self.optimizer.param_groups[0]["lr"]}
        if not self.options.statistics:
            return figures
        gradients = {name: full_tensor(weight.grad) for name, weight in self._weights.items()}
        pixels = self.data.train_images[part.indices].normalised()
        with self._precision():
            activations = activation_statistics(self._module, self.network, pixels)
        return {**figures, "gradients": gradient_statistics(gradients), "activations": activations}

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Mean cross-entropy per test image, and the fraction told right; every image counts once."""
        self.network.eval()
        images, labels = self.data.test_images, self.data.test_labels
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        everything = torch.arange(len(labels), device=self.device)
        for part in parts(everything, self.options.test_batch_size, rank=self.rank_info.rank, size=self.rank_info.size):
            logits = self._logits(images[part.indices].normalised())
            truth = labels[part.indices]
            loss = F.cross_entropy(logits, truth, reduction="sum")
            right = (logits.argmax(1) == truth).sum()
            sums += part.weight * torch.stack([loss, right]).double()
        dist.all_reduce(sums)
        loss, right = (sums / len(labels)).tolist()
        return loss, right

    def weights(self) -> dict[str, Tensor]:
        """All weights by name, on the CPU. All processes must call this."""
        return {name: full_tensor(weight.detach()) for name, weight in self._weights.items()}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Weights and moments by kind and name, as they are: with fsdp only this process's shard."""
        weights = {name: weight.detach() for name, weight in self._weights.items()}
        return {"weights": weights, **self._moments}

    def progress(self) -> dict[str, float]:
        """Numbers to continue from beside the tensors."""
        scaler = self._scaler.state_dict()  # empty where gradients are not scaled
        return {
            "steps": self.n_done, "updates": updates(self.optimizer),
            "scale": scaler.get("scale", 0.0), "growth": scaler.get("_growth_tracker", 0),
        }  # fmt: skip

    def state(self, shards: str = "") -> Checkpoint:
        """All there is to continue from. All processes must call this.

        Args:
            shards: where the tensors are kept already.
        """
        tensors = {} if shards else self.tensors()
        whole = {kind: {name: full_tensor(one) for name, one in those.items()} for kind, those in tensors.items()}
        return Checkpoint(list(self.epochs), self.progress(), whole, shards)

    @torch.no_grad()
    def restore(self, state: Checkpoint | None) -> None:
        """Take over the tensors of the checkpoint that rank 0 has read. All processes must call this."""
        for kind, those in self.tensors().items():
            for name, tensor in those.items():
                tensor.copy_(distribute_like(tensor, state and state.tensors[kind][name]))

    def go_on(self, epochs: list[Epoch], progress: dict[str, float]) -> None:
        """Continue after these epochs, with the tensors of that time."""
        self.epochs, self.n_done = list(epochs), int(progress["steps"])
        set_updates(self.optimizer, int(progress["updates"]))
        if scaler := self._scaler.state_dict():
            scaler |= {"scale": progress["scale"], "_growth_tracker": int(progress["growth"])}
            self._scaler.load_state_dict(scaler)
        self._set_length()

    def _set_length(self) -> None:
        """How many steps the training has, those done included; with another number of processes the rest changes."""
        per_epoch = math.ceil(len(self.data.train_labels) / (self.options.batch_size * self.rank_info.size))
        self._n_steps = self.n_done + (self.options.epochs - len(self.epochs)) * per_epoch
