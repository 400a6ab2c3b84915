"""Trainings of 1, 2 and 3 processes that a test compares: python -m tests.mnist_nn.worlds FOLDER

Forked from a process without threads, so that what they need is imported once. For each world, rank 0 writes what it
has to FOLDER/SIZE-STRATEGY.npz, and FOLDER/reference.npz is made without any of the code under test.
"""

from __future__ import annotations

import faulthandler
import functools
import multiprocessing
import sys
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from mnist_nn.net import Images
from mnist_nn.parallel.networks import Network
from mnist_nn.parallel.optimizer import Rule
from mnist_nn.parallel.rendezvous import RankInfo
from mnist_nn.parallel.settings import Settings
from mnist_nn.parallel.train import DistributedTraining, TrainingData, order_of, parts
from tests.mnist_nn.scaled_digits import scaled_digits

BATCH, N_TRAIN, N_TEST, EPOCHS = 48, 3 * 48 + 2, 101, 2  # of the last 2 images, one of 3 processes gets none
RATE, MOMENTUM, SEED = 0.02, 0.5, 3
WORLDS = ((1, "ddp"), (2, "ddp"), (3, "ddp"), (2, "fsdp"), (3, "fsdp"))
KUBEFLOW = {"network": "kubeflow"}
CPU = torch.device("cpu")


@functools.cache
def data() -> TrainingData:
    tensors = {name: torch.tensor(array) for name, array in scaled_digits(N_TRAIN, N_TEST).items()}
    return TrainingData(**{name: Images(t) if t.ndim == 3 else t.long() for name, t in tensors.items()})


def world(rank: int, size: int, strategy: str, file: Path) -> None:
    faulthandler.dump_traceback_later(300, exit=True)  # where it waits, if it waits for ever
    store = dist.FileStore(str(file.with_suffix(".store")), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    rule = Rule("sgd", RATE, MOMENTUM)
    settings = Settings(
        batch_size=BATCH // size, test_batch_size=7, seed=SEED, strategy=strategy, log_interval=1000, epochs=EPOCHS
    )

    def training() -> DistributedTraining:
        return DistributedTraining(settings, rule, KUBEFLOW, RankInfo(rank, size, rank, size, 1), CPU, data())

    found = {}
    for name, batch in (("first", 0), ("last", -1)):
        one = training()
        one.steps([list(parts(order_of(N_TRAIN, SEED, 1), BATCH // size, rank=rank, size=size))[batch]])
        state = one.state()
        for weight, moment in zip(state.weights, state.optimizer.get("state", {}).values(), strict=True):
            found[f"{name} {weight}"] = moment["momentum_buffer"]  # after one step it is the gradient
    whole = training()
    found["start"] = np.array(whole.evaluate())
    epochs = [whole.epoch(None) for _ in range(EPOCHS)]
    found["epochs"] = np.array([(epoch.train_loss, epoch.test_loss, epoch.accuracy) for epoch in epochs])
    found |= {f"trained {name}": weight for name, weight in whole.state().weights.items()}
    if rank == 0:
        np.savez(file, **found)
    dist.barrier()
    dist.destroy_process_group()


def reference() -> dict[str, np.ndarray]:
    """One process, PyTorch's own mean, no distributed module."""
    train, labels = data().train_images.normalised(), data().train_labels
    test, truth = data().test_images.normalised(), data().test_labels
    torch.manual_seed(SEED)
    network: nn.Module = Network(KUBEFLOW, (28, 28), 10)
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM)

    def evaluate() -> tuple[float, float]:
        with torch.no_grad():
            logits = network(test)
        return float(F.cross_entropy(logits, truth)), float((logits.argmax(1) == truth).double().mean())

    found = {"start": np.array(evaluate())}
    order = order_of(N_TRAIN, SEED, 1)
    for name, batch in (("first", order[:BATCH]), ("last", order[-2:])):
        optimizer.zero_grad()
        F.cross_entropy(network(train[batch]), labels[batch]).backward()
        found |= {f"{name} {n}": w.grad.numpy().copy() for n, w in network.named_parameters() if w.grad is not None}
    epochs = []
    for epoch in range(1, EPOCHS + 1):
        total = 0.0
        for batch in order_of(N_TRAIN, SEED, epoch).split(BATCH):
            optimizer.zero_grad()
            loss = F.cross_entropy(network(train[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        epochs.append((total / N_TRAIN, *evaluate()))
    found["epochs"] = np.array(epochs)
    return found | {f"trained {n}": w.detach().numpy() for n, w in network.named_parameters()}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    np.savez(folder / "reference.npz", **reference())
    fork = multiprocessing.get_context("fork")
    for size, strategy in WORLDS:
        file = folder / f"{size}-{strategy}.npz"
        ranks = [fork.Process(target=world, args=(rank, size, strategy, file), daemon=True) for rank in range(size)]
        for process in ranks:
            process.start()
        while running := [process.sentinel for process in ranks if process.is_alive()]:
            wait(running)
            if any(process.exitcode for process in ranks):
                sys.exit(f"{file.stem} failed")  # and ends the others, which would wait for it


if __name__ == "__main__":
    main(Path(sys.argv[1]))
