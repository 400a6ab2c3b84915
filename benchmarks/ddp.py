"""Images per second of data-parallel training on 1 and 2 processes: the way of examples, and `mnist_nn.ddp`.

    OMP_NUM_THREADS=1 python -m benchmarks.ddp [--data DIR] [--batch-sizes N ...] [--rounds N] [--results FILE]

Both train the Kubeflow network on one thread per process over gloo, turn by turn; a turn is a pass over the images,
evaluation apart. The way of examples: a DataLoader with a DistributedSampler over PIL images and torchvision's
transforms, the eager network, DistributedDataParallel, SGD. Ours has all images in memory, pooling before ReLU,
channels last and fused SGD. Shown are medians over the rounds, with the extremes. Efficiency is the images per second
of 2 processes over twice those of 1, which take turns as well; "2 apart" are two processes that share nothing and each
train half of the images at the same time: what the machine itself allows. CPU time, summed over the processes, says
less of how long one waits but hardly depends on what else the machine does. Without --data the pixels are random.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.machine import circumstances, publish, table
from benchmarks.nn_reference import Images
from mnist_nn import net
from mnist_nn.parallel.optimizer import Rule
from mnist_nn.parallel.rendezvous import Address, RankInfo, open_store
from mnist_nn.parallel.settings import Settings
from mnist_nn.parallel.train import DistributedTraining, TrainingData

RATE, MOMENTUM, SEED = 0.01, 0.5, 1
CPU = torch.device("cpu")
WAYS = ("example", "ours")


class Example(nn.Module):
    """The network as examples write it."""

    def __init__(self) -> None:
        super().__init__()
        first, second = (20, 50)
        self.conv1, self.conv2 = nn.Conv2d(1, first, 5), nn.Conv2d(first, second, 5)
        self.fc1, self.fc2 = nn.Linear(second * 16, 500), nn.Linear(500, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2, 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2, 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return F.log_softmax(self.fc2(x), dim=1)


def example(images: Tensor, labels: Tensor, rank_info: RankInfo, batch_size: int) -> Callable[[], None]:
    """A function that trains for one epoch."""
    pictures = Images(images, labels)
    sampler: DistributedSampler[Any] = DistributedSampler(pictures, rank_info.size, rank_info.rank, seed=SEED)
    loader = DataLoader(pictures, batch_size=batch_size, sampler=sampler)
    network = nn.parallel.DistributedDataParallel(Example())
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM)

    def epoch() -> None:
        for number, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.nll_loss(network(x), y)
            loss.backward()
            optimizer.step()
            if number % 10 == 0:
                loss.item()  # which an example prints here

    return epoch


def ours(images: Tensor, labels: Tensor, rank_info: RankInfo, batch_size: int) -> Callable[[], None]:
    data = TrainingData(net.Images(images), labels, net.Images(images[:1]), labels[:1])
    training = DistributedTraining(
        Settings(batch_size=batch_size, seed=SEED),
        Rule("sgd", RATE, MOMENTUM),
        {"network": "kubeflow"},
        rank_info,
        CPU,
        data,
    )

    def epoch() -> None:
        training.epoch(None)

    return epoch


@dataclass(frozen=True)
class World:
    """Processes that train together, or apart."""

    size: int
    together: bool = True

    def __str__(self) -> str:
        return str(self.size) if self.together else f"{self.size} apart"


WORLDS = (World(1), World(2), World(2, together=False))


def process(
    port: int, world: World, way: str, rank: int, batch_size: int, images: Tensor, labels: Tensor, orders: Connection
) -> None:
    """Train for an epoch each time it is asked for, and answer with its wall and its CPU seconds."""
    torch.set_num_threads(1)
    group = f"{way} {world}" if world.together else f"{way} {world} {rank}"
    rank_info = RankInfo(rank, world.size, rank, world.size, 1) if world.together else RankInfo(0, 1, 0, 1, 1)
    if not world.together:
        images, labels = images[rank :: world.size].clone(), labels[rank :: world.size].clone()
    store = dist.PrefixStore(group, open_store(Address("127.0.0.1", port)))
    dist.init_process_group("gloo", store=store, rank=rank_info.rank, world_size=rank_info.size)
    epoch = {"example": example, "ours": ours}[way](images, labels, rank_info, batch_size)
    orders.send(None)  # ready
    while orders.recv():
        start, cpu_start = time.perf_counter(), time.process_time()
        epoch()
        orders.send((time.perf_counter() - start, time.process_time() - cpu_start))
    dist.destroy_process_group()


Seconds = dict[tuple[World, str], list[float]]  # of each round, by world and way


def measure(images: Tensor, labels: Tensor, batch_size: int, rounds: int) -> tuple[Seconds, Seconds]:
    """Wall seconds of an epoch, of its slowest process, and CPU seconds of all processes."""
    store = open_store(Address("127.0.0.1", 0), is_master=True)
    context = multiprocessing.get_context("spawn")
    pipes: dict[tuple[World, str], list[Connection]] = {}
    processes = []
    for world, way in itertools.product(WORLDS, WAYS):
        pipes[world, way] = []
        for rank in range(world.size):
            here, there = context.Pipe()
            arguments = (store.port, world, way, rank, batch_size, images, labels, there)
            processes.append(context.Process(target=process, args=arguments, daemon=True))
            processes[-1].start()
            pipes[world, way].append(here)
    for pipe in itertools.chain(*pipes.values()):
        pipe.recv()
    wall: Seconds = {pair: [] for pair in pipes}
    cpu: Seconds = {pair: [] for pair in pipes}
    for number in range(rounds + 1):
        for pair, several in pipes.items():
            for pipe in several:
                pipe.send(True)
            taken = [pipe.recv() for pipe in several]
            if number:  # the first round is for warming up
                wall[pair].append(max(one for one, _ in taken))
                cpu[pair].append(sum(one for _, one in taken))
    for pipe in itertools.chain(*pipes.values()):
        pipe.send(False)
    for one in processes:
        one.join()
    return wall, cpu


def spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of MNIST; default: random pixels")
    parser.add_argument(
        "--images", type=int, default=6400, metavar="N", help="images of an epoch (default %(default)s)"
    )
    parser.add_argument(
        "--batch-sizes",
        type=int,
        nargs="+",
        default=[64, 128, 256],
        metavar="N",
        help="per process (default 64 128 256)",
    )
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    parser.add_argument("--results", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.data is None:
        images = torch.randint(256, (options.images, 28, 28), dtype=torch.uint8)
        labels = torch.randint(10, (options.images,))
    else:
        from common.data import load

        data = load("mnist", options.data, options.images)
        images, labels = torch.tensor(data["train_images"]), torch.tensor(data["train_labels"]).long()
    rows: list[dict[str, Any]] = []
    for batch_size in options.batch_sizes:
        wall, cpu = measure(images, labels, batch_size, options.rounds)
        for world in WORLDS:
            row: dict[str, Any] = {"batch": batch_size, "processes": world}
            for way in WAYS:
                row[f"{way}, images/s"] = f"{len(labels) / statistics.median(wall[world, way]):,.0f}"
                row[f"{way}, CPU us/image"] = f"{statistics.median(cpu[world, way]) / len(labels) * 1e6:.0f}"
            for name, seconds in (("wall", wall), ("CPU", cpu)):
                for way in WAYS[:-1]:
                    pairs = zip(seconds[world, way], seconds[world, "ours"], strict=True)
                    row[f"{way} / ours, {name}"] = spread([slow / fast for slow, fast in pairs])
            for way in WAYS:
                ones = zip(wall[WORLDS[0], way], wall[world, way], strict=True)
                row[f"{way}, efficiency"] = spread([one / several / world.size for one, several in ones])
            rows.append(row)
    facts = dict(threads=1, images=len(labels), rounds=options.rounds)
    facts["pixels"] = "MNIST" if options.data else "random"
    publish(circumstances("torch", "torchvision", **facts) + "\n\n" + table(rows), options.results)


if __name__ == "__main__":
    main()
