"""Data-parallel training with more processes than cores, alone and beside a busy loop on each core.

    python -m benchmarks.ddp_cores [--images 4000]

The same images are trained on for an epoch by 1, 2, 4 and 8 processes with batches of 64 each. An epoch should take as
long with 8 processes as with one for each core, and twice as long where every core has something else to do.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.machine import circumstances, publish, table
from mnist_nn.net import Images
from mnist_nn.parallel.optimizer import Rule
from mnist_nn.parallel.rendezvous import Address, RankInfo, open_store
from mnist_nn.parallel.train import DistributedOptions, DistributedTraining, TrainingData


def train(
    port: int, name: str, rank: int, size: int, n_images: int, epochs: int, threads: int, answers: Connection
) -> None:
    """The seconds of each epoch after a first one."""
    torch.set_num_threads(threads)
    store = dist.PrefixStore(name, open_store(Address("127.0.0.1", port)))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (n_images, 28, 28), generator=generator).to(torch.uint8)
    labels = torch.randint(10, (n_images,), generator=generator)
    data = TrainingData(Images(images), labels, Images(images[:1]), labels[:1])
    options = DistributedOptions(64, 1000, Rule("sgd", 0.01, 0.5), seed=1)
    training = DistributedTraining(
        options, {"network": "kubeflow"}, RankInfo(rank, size, rank, size, 1), torch.device("cpu"), data
    )
    seconds = []
    for _ in range(1 + epochs):
        start = time.perf_counter()
        training.epoch(None)
        seconds.append(time.perf_counter() - start)
    answers.send(seconds[1:])
    dist.barrier()


def busy() -> None:
    while True:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--results", type=Path, help="file to keep the table in")
    parser.add_argument("--sizes", type=int, nargs="+", default=(1, 2, 4, 8), help="numbers of processes")
    parser.add_argument("--threads", type=int, default=1, help="of each process; more than the cores there are for it")
    parser.add_argument("--loops", type=int, nargs="+", help="busy loops beside; default: none, then one on each core")
    parser.add_argument("--epochs", type=int, default=3, help="timed, after one that is not")
    given = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    store = open_store(Address("127.0.0.1", 0), is_master=True)
    cores = len(os.sched_getaffinity(0))
    rows, first, before = [], 0.0, os.getloadavg()[0]
    for beside in (0, cores) if given.loops is None else given.loops:
        loops = [spawn.Process(target=busy, daemon=True) for _ in range(beside)]
        for loop in loops:
            loop.start()
        for size in given.sizes:
            mine, theirs = spawn.Pipe(duplex=False)
            name = f"{beside}-{size}"
            ranks = [
                spawn.Process(
                    target=train, args=(store.port, name, rank, size, given.images, given.epochs, given.threads, theirs)
                )
                for rank in range(size)
            ]
            for process in ranks:
                process.start()
            seconds = statistics.median(mine.recv())
            for process in ranks:
                process.join()
            first = first or seconds
            what = f"{beside} busy loops" if beside else "nothing of ours"
            rows.append(
                {
                    "processes": size,
                    "beside": what,
                    "seconds of an epoch": f"{seconds:.2f}",
                    "images a second": f"{given.images / seconds:.0f}",
                    "times the first row": f"{seconds / first:.2f}",
                }
            )
            print(*rows[-1].values(), flush=True)
        for loop in loops:
            loop.kill()
    facts = {"images": given.images, "epochs": given.epochs, "load average before": f"{before:.1f}"}
    publish(f"{circumstances('torch', **facts)}\n\n{table(rows)}", given.results)


if __name__ == "__main__":
    main()
