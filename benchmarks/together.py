"""Small networks trained one by one and by `search(..., together=40)`: processor time, and the same bits anywhere.

    python -m benchmarks.together [--trials 80] [--rounds 3] [--results FILE]

A trial is a learning rate and a momentum for 64-32-10 on scikit-learn's digits, batches of 10, 5 epochs: torch.optim
alone, or K networks as one by `torch.baddbmm`. The processor time is what the journal says of the trials, without the
start of workers. Losses are compared bit by bit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import circumstances, publish, table
from mpitune import Float, RunOptions, search
from mpitune.storage.history import read_study
from mpitune.trial import seed_of

SPACE = {"lr": Float(1e-3, 1e-1, log=True), "momentum": Float(0, 0.9)}
EPOCHS, BATCH, N_TRAIN, LAYOUTS = 5, 10, 1200, ((1, 0), (2, 0), (1, 3))  # workers of a rank, ranks by mpirun


class Alone:
    """One network, as PyTorch's own optimizer trains it."""

    def setup(self, device: str) -> None:
        import torch
        from sklearn.datasets import load_digits

        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        x, y = load_digits(return_X_y=True)
        inputs, labels = torch.tensor((x / 16).astype(np.float32)), torch.tensor(y)
        self.train, self.valid = (inputs[:N_TRAIN], labels[:N_TRAIN]), (inputs[N_TRAIN:], labels[N_TRAIN:])

    def begun(self, trial: Any) -> tuple[list[Any], Any]:
        """The initial weights of a trial, and the rows of its batches."""
        import torch

        rng = np.random.default_rng(seed_of(0, str(trial.number)))
        shapes = (32, 64), (32,), (10, 32), (10,)
        weights = [torch.from_numpy(rng.uniform(-0.15, 0.15, shape).astype(np.float32)) for shape in shapes]
        return weights, torch.from_numpy(np.concatenate([rng.permutation(N_TRAIN) for _ in range(EPOCHS)]))

    def __call__(self, trial: Any) -> dict[str, float]:
        import torch
        from torch.nn.functional import cross_entropy, linear

        def loss(x: Any, y: Any) -> Any:
            return cross_entropy(linear(linear(x, *weights[:2]).relu(), *weights[2:]), y)

        start = time.process_time()
        weights, rows = self.begun(trial)
        for weight in weights:
            weight.requires_grad_()
        optimizer = torch.optim.SGD(weights, lr=trial.params["lr"], momentum=trial.params["momentum"])
        for chosen in rows.split(BATCH):
            optimizer.zero_grad()
            loss(self.train[0][chosen], self.train[1][chosen]).backward()
            optimizer.step()
        with torch.no_grad():
            found = float(loss(*self.valid).nan_to_num(float("inf")))
        return {"loss": found, "cpu_seconds": time.process_time() - start}


class Together(Alone):
    """As many networks as there are trials, each weight of all of them in one tensor."""

    def __call__(self, trials: Any) -> list[dict[str, float]]:
        import torch
        from torch.nn.functional import cross_entropy

        def logits(x: Any) -> Any:
            hidden = torch.baddbmm(weights[1][:, None], x, weights[0].mT).relu()
            return torch.baddbmm(weights[3][:, None], hidden, weights[2].mT)

        start = time.process_time()
        initial, rows = zip(*map(self.begun, trials), strict=True)
        weights = [torch.stack(of_all).requires_grad_() for of_all in zip(*initial, strict=True)]
        momenta = [torch.zeros_like(weight) for weight in weights]
        rates, decays = (
            [torch.tensor([t.params[name] for t in trials]).view(-1, *[1] * (w.ndim - 1)) for w in weights]
            for name in ("lr", "momentum")
        )
        for chosen in torch.stack(rows).split(BATCH, 1):
            out = logits(self.train[0][chosen]).flatten(0, 1)
            losses = cross_entropy(out, self.train[1][chosen].flatten(), reduction="none")
            (losses.view(len(trials), -1).mean(1).sum()).backward()
            with torch.no_grad():
                for weight, momentum, rate, decay in zip(weights, momenta, rates, decays, strict=True):
                    momentum.mul_(decay).add_(weight.grad)
                    weight.sub_(rate * momentum)
                    weight.grad = None
        with torch.no_grad():
            out = logits(self.valid[0].expand(len(trials), -1, -1))
            found = [float(cross_entropy(one, self.valid[1]).nan_to_num(float("inf"))) for one in out]
        share = (time.process_time() - start) / len(trials)
        return [{"loss": loss, "cpu_seconds": share} for loss in found]


def searched(k: int, n: int, workers: int, results: Path | None = None, **how: Any) -> Any:
    """A random search of n networks in groups of k, one by one where k is 0."""
    groups = {"together": k} if k else {}
    options = RunOptions(quiet=True)
    return search(
        Together() if k else Alone(), SPACE, n_trials=n, minimize="loss", workers=workers, results=results,
        options=options, **groups, **how,
    )  # fmt: skip


def measured(k: int, n: int) -> tuple[float, np.ndarray]:
    """Processor seconds of the trials, and their losses."""
    with tempfile.TemporaryDirectory() as folder:
        with redirect_stdout(StringIO()):  # the report
            study = searched(k, n, 1, Path(folder) / "r")
        used = sum(result.values["cpu_seconds"] for result in read_study(Path(folder) / "r").results.values())
    return used, np.array([trial.values["loss"] for trial in study.trials])


def digest(losses: Any) -> str:
    return hashlib.sha256(np.asarray(losses).tobytes()).hexdigest()[:12]


def on_layout(k: int, n: int, workers: int, ranks: int) -> str:
    """A digest of the losses on so many workers of each rank."""
    command = [sys.executable, "-m", "benchmarks.together", "--digest", str(k), str(workers), "--trials", str(n)]
    beside = str(Path(sys.executable).with_name("mpirun"))
    mpirun = [beside, "--oversubscribe", "--bind-to", "none", "-n", str(ranks), "--allow-run-as-root"] if ranks else []
    return subprocess.run(mpirun + command, capture_output=True, text=True, check=True).stdout.split()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--digest", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    n = given.trials
    if given.digest:
        k, workers = given.digest
        print(digest([trial.values["loss"] for trial in searched(k, n, workers).trials]))
        return
    sizes = 0, 5, 40
    rounds = [{k: measured(k, n) for k in sizes} for _ in range(given.rounds)]
    rows = []
    for k in sizes:
        seconds = [of_round[k][0] / n for of_round in rounds]
        ratios = sorted(of_round[0][0] / of_round[k][0] for of_round in rounds)
        same = {digest(of_round[k][1]) for of_round in rounds} | {on_layout(k, n, *layout) for layout in LAYOUTS}
        off = np.abs(rounds[0][k][1] / rounds[0][0][1] - 1)
        rows.append({
            "together": k or "one by one",
            "CPU ms a trial": f"{statistics.median(seconds) * 1e3:.0f}",
            "times less": f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})",
            "loss beside one by one, at most": f"{off.max():.0e} off",
            "losses on 1 and 2 workers, 3 ranks": "the same bits" if len(same) == 1 else f"{len(same)} different",
        })  # fmt: skip
    text = f"{circumstances('torch', 'numpy', trials=n, rounds=given.rounds)}\n\n{table(rows)}"
    publish(text, given.results)


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    main()
