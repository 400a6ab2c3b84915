"""The training itself: what each of its processes does once it has found the others.

The order of the images depends on the seed and the epoch alone. It is cut into global batches, and each global batch
into one part per process, so one process with batches of 128 and two with 64 take the same steps. Parts may differ
in size where a batch does not divide: a process scales the sum of its losses so that the mean of the processes'
gradients is the gradient of the global batch's mean loss.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

from common.errors import UsageError
from common.images import N_CLASSES
from mnist_nn.net import normalised
from mnist_nn.parallel.checkpoint import Checkpoint
from mnist_nn.parallel.log import Epoch, Log
from mnist_nn.parallel.networks import build
from mnist_nn.parallel.rendezvous import RankInfo
from mnist_nn.shapes import Params
from mnist_nn.training import prepare

if TYPE_CHECKING:
    from mnist_nn.parallel.cpu.sgd import SharedSGD


class Part(NamedTuple):
    """This process's part of a global batch: int64 indices, at least one; what each of its losses counts; the whole.

    Where there are more processes than images, some take the first image with weight 0: all take part in every step.
    """

    indices: Tensor
    weight: float
    n_global: int


class Block(NamedTuple):
    """Steps of an epoch, up to `step`: their n_images, float64 (n_steps,) losses and the work of adding those up."""

    epoch: int
    step: int
    n_images: int
    losses: Tensor
    adding: Any

    def done(self, log: Log | None) -> float:
        """The sum of all losses. Raises FloatingPointError in all processes where it is not finite."""
        self.adding.wait()
        total = math.fsum(self.losses.tolist())
        if log:
            log.write(epoch=self.epoch, step=self.step, loss=total / self.n_images)
        if not math.isfinite(total):
            raise FloatingPointError(f"the loss is not finite in step {self.step} of epoch {self.epoch}")
        return total


class DistributedOptions(NamedTuple):
    """batch_size and test_batch_size are per process, learning_rate is what the optimizer gets."""

    batch_size: int
    test_batch_size: int
    learning_rate: float
    momentum: float
    seed: int
    strategy: str = "ddp"
    amp: bool = False
    compile: bool = False
    log_interval: int = 10
    max_pixel: float = 255.0


def parts(order: Tensor, batch_size: int, rank: int, size: int) -> Iterator[Part]:
    """The part of process `rank` of each global batch of batch_size * size images, the last one smaller."""
    for batch in order.split(batch_size * size):
        mine = batch.tensor_split(size)[rank]
        yield Part(mine, 1.0, len(batch)) if len(mine) else Part(batch[:1], 0.0, len(batch))


def order_of(n: int, seed: int, epoch: int) -> Tensor:
    """int64 (n,): the images in the order of that epoch, the same in every process."""
    return torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(n))


class DistributedTraining:
    """A network spread over the processes of the default process group, and its optimizer.

    Args:
        images, labels, test_images, test_labels: uint8 (n, h, w) and int64 (n,), all on `device`.
    """

    def __init__(
        self,
        options: DistributedOptions,
        params: Params,
        rank_info: RankInfo,
        device: torch.device,
        data: dict[str, Tensor],
    ) -> None:
        prepare(device)
        torch.manual_seed(options.seed)
        self.options, self.rank_info, self.device, self.data = options, rank_info, device, data
        height, width = data["train_images"].shape[1:]
        network = build(params, (height, width), N_CLASSES).to(device)
        self.network = _wrap_model(network, options, device)
        self._weights = dict(network.named_parameters())
        self._forward = torch.compile(self.network) if options.compile else self.network
        self.optimizer, velocity = _optimizer(list(self._weights.values()), options, device)
        self._velocity = dict(zip(self._weights, velocity, strict=True)) if options.momentum else {}
        self.epochs: list[Epoch] = []

    def epoch(self, log: Log | None) -> Epoch:
        """Train for one epoch and evaluate. Raises FloatingPointError in all processes where the loss is not finite."""
        number, start = len(self.epochs) + 1, time.perf_counter()
        n_images, total, step = len(self.data["train_labels"]), 0.0, 0
        order = order_of(n_images, self.options.seed, number).to(self.device)
        per_block = self.options.batch_size * self.rank_info.size * self.options.log_interval
        before: Block | None = None
        for images in order.split(per_block):
            taken = list(parts(images, self.options.batch_size, self.rank_info.rank, self.rank_info.size))
            losses, step = self.steps(taken), step + len(taken)
            block = Block(number, step, len(images), losses, dist.all_reduce(losses, async_op=True))
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
        pixels = normalised(self.data["train_images"][indices], self.options.max_pixel).split(sizes)
        labels = self.data["train_labels"][indices].split(sizes)
        self.network.train()
        losses = []
        for part, x, y in zip(taken, pixels, labels, strict=True):
            loss = self._gradient(part, x, y)
            self.optimizer.step()
            losses.append(loss)
        return torch.stack(losses).double()

    def _gradient(self, part: Part, pixels: Tensor, labels: Tensor) -> Tensor:
        """Make the gradient of the global batch's mean loss; returns the sum of the part's losses."""
        for weight in self._weights.values():  # not the module's zero_grad: FSDP may have other parameters in it now
            weight.grad = None
        loss = part.weight * F.cross_entropy(self._logits(pixels), labels, reduction="sum")
        (loss * (self.rank_info.size / part.n_global)).backward()  # of which the mean over the processes is taken
        return loss.detach()

    def _logits(self, pixels: Tensor) -> Tensor:
        reduced = torch.autocast(self.device.type, torch.bfloat16) if self.options.amp else nullcontext()
        with reduced:
            return self._forward(pixels).float()

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Mean cross-entropy per test image, and the fraction told right; every image counts once."""
        self.network.eval()
        images, labels = self.data["test_images"], self.data["test_labels"]
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        everything = torch.arange(len(labels), device=self.device)
        for part in parts(everything, self.options.test_batch_size, self.rank_info.rank, self.rank_info.size):
            logits = self._logits(normalised(images[part.indices], self.options.max_pixel))
            truth = labels[part.indices]
            loss = F.cross_entropy(logits, truth, reduction="sum")
            right = (logits.argmax(1) == truth).sum()
            sums += part.weight * torch.stack([loss, right]).double()
        dist.all_reduce(sums)
        loss, right = (sums / len(labels)).tolist()
        return loss, right

    def weights(self) -> dict[str, Tensor]:
        """All weights by name, on the CPU. All processes must call this."""
        return {name: _full_tensor(weight.detach()) for name, weight in self._weights.items()}

    def state(self) -> Checkpoint:
        """All there is to continue from. All processes must call this."""
        velocity = {name: _full_tensor(velocity) for name, velocity in self._velocity.items()}
        return Checkpoint(list(self.epochs), self.weights(), velocity)

    @torch.no_grad()
    def restore(self, state: Checkpoint | None, epochs: list[Epoch]) -> None:
        """Continue after `epochs`, from the checkpoint that rank 0 has read. All processes must call this."""
        for name, weight in self._weights.items():
            weight.copy_(_distribute_like(weight, state and state.weights[name]))
        for name, velocity in self._velocity.items():
            velocity.copy_(_distribute_like(velocity, state and state.velocity[name]))
        dist.barrier()  # others may have these in the same memory
        self.epochs = list(epochs)


def _full_tensor(tensor: Tensor) -> Tensor:
    """A tensor, or all shares of one, on the CPU."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu().contiguous()


def _distribute_like(weight: Tensor, content: Tensor | None) -> Tensor:
    """Rank 0's `content`, on the device and in the shares of `weight`."""
    whole = torch.empty(weight.shape, device=weight.device)
    if content is not None:
        whole.copy_(content)
    dist.broadcast(whole, src=0)
    if isinstance(weight, DTensor):
        return distribute_tensor(whole, weight.device_mesh, weight.placements)
    return whole


def _wrap_model(network: nn.Module, options: DistributedOptions, device: torch.device) -> nn.Module:
    """The network as the strategy wants it.

    CPUs are faster with the channels last in memory; FSDP refuses that.
    """
    if options.strategy == "fsdp":
        from torch.distributed.fsdp import FSDPModule, fully_shard

        # Without a mesh it would take the GPUs that are there, also where the training is on CPUs.
        fully_shard(network, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))
        assert isinstance(network, FSDPModule)
        if dist.get_backend() != "nccl":
            if not hasattr(network, "set_force_sum_reduction_for_comms"):
                raise UsageError(f"--strategy fsdp without NCCL needs torch>=2.9, and this is {torch.__version__}")
            network.set_force_sum_reduction_for_comms(True)  # only NCCL has an operation for the mean
        return network
    network = network.to(memory_format=torch.channels_last)
    if device.type == "cpu":
        return network
    return nn.parallel.DistributedDataParallel(network, device_ids=[device.index], gradient_as_bucket_view=True)


def _optimizer(
    weights: list[nn.Parameter], options: DistributedOptions, device: torch.device
) -> tuple[torch.optim.SGD | SharedSGD, list[Tensor]]:
    """The optimizer, and the velocity of each weight."""
    rate, momentum, plain = options.learning_rate, options.momentum, options.strategy == "ddp"
    if plain and device.type == "cpu" and dist.get_world_size() > 1:
        from mnist_nn.parallel.cpu.sgd import SharedSGD

        shared = SharedSGD(weights, rate, momentum)
        return shared, shared.velocity
    optimizer = torch.optim.SGD(weights, lr=rate, momentum=momentum, fused=plain or None)
    velocity = [torch.zeros_like(weight) for weight in weights]
    if momentum:
        for weight, its in zip(weights, velocity, strict=True):
            optimizer.state[weight]["momentum_buffer"] = its
    return optimizer, velocity
