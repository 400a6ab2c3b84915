"""Output of rank 0: a line per epoch, a log in JSON lines, a row of a table."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mpitune.errors import duration
from mpitune.storage.table import read_table, write_table

TABLE = "ddp.csv"


class Epoch(NamedTuple):
    """Figures of one epoch.

    Attributes:
        train_loss, test_loss: mean cross-entropy per image; the first one while training.
        accuracy: fraction of the test images that are told right.
        images_per_second: of the training, over all processes; an image that all of them take counts once.
        seconds: wall time, the test included.

    Of an epoch that was continued, the last two are of the run that ended it.
    """

    epoch: int
    train_loss: float
    test_loss: float
    accuracy: float
    images_per_second: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"epoch {self.epoch:>3}  train loss {self.train_loss:.4f}  test loss {self.test_loss:.4f}  "
            f"accuracy {self.accuracy:.2%}  {self.images_per_second:,.0f} images/s  {duration(self.seconds)}"
        )


class Share(NamedTuple):
    """What the process of a host has done of some steps, and (least, largest) of what each layer put out there."""

    host: str
    loss: float
    n_images: float
    ranges: dict[str, tuple[float, float]]


class Log:
    """JSON lines, each written at once. A training that is resumed goes on in the same file.

    Args:
        board: a folder that gets the figures for TensorBoard, from step `done` on.
    """

    def __init__(self, path: Path, *, resume: bool, board: Path | None = None, done: int = 0) -> None:
        self._board: Any = None
        self._file = open(path, "a" if resume else "w", encoding="utf-8")  # noqa: SIM115 - for the training's life
        if board:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(board, purge_step=done + 1 if resume else None)

    def write(self, **what: Any) -> None:
        print(json.dumps({"time": round(time.time(), 3), **what}), file=self._file, flush=True)

    def block(self, epoch: int, step: int, total_steps: int, **figures: Any) -> None:
        """Figures of the steps of an epoch up to `step`."""
        self.write(epoch=epoch, step=step, **figures)
        self._show(total_steps, figures)

    @staticmethod
    def hosts(shares: Sequence[Share], epoch: int, step: int, learning_rate: float, seconds: float) -> None:
        """Print a line for each host of what its processes have done."""
        for host in dict.fromkeys(share.host for share in shares):
            here = [share for share in shares if share.host == host]
            loss, n_images = sum(share.loss for share in here), sum(share.n_images for share in here)
            ranges = {
                layer: list(zip(*(share.ranges[layer] for share in here), strict=True)) for layer in here[0].ranges
            }
            print(
                f"{host}: epoch {epoch}  step {step}  loss {loss / (n_images or 1):.4f}  "
                f"learning rate {learning_rate:.4g}  {n_images / seconds:,.0f} images/s",
                *(f"{layer} {min(low):.3g}..{max(high):.3g}" for layer, (low, high) in ranges.items()),
                sep="  ", flush=True,
            )  # fmt: skip

    def epoch(self, epoch: Epoch) -> None:
        self.write(**epoch._asdict())
        self._show(epoch.epoch, {"epoch": {k: v for k, v in epoch._asdict().items() if k != "epoch"}})
        print(epoch, flush=True)
        if self._board:
            self._board.flush()

    def _show(self, step: int, figures: Mapping[str, Any], prefix: str = "") -> None:
        for name, value in figures.items() if self._board else ():
            if isinstance(value, Mapping):
                self._show(step, value, f"{prefix}{name}/")
            else:
                self._board.add_scalar(prefix + name, value, step)


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add a row to a table, which is whole at all times."""
    rows: list[Mapping[str, Any]] = []
    with contextlib.suppress(FileNotFoundError), open(path, newline="", encoding="utf-8", errors="replace") as file:
        rows = list(read_table(file))
    write_table(path, [*rows, row])


def summary(row: Mapping[str, Any], last: Epoch) -> str:
    """The row as a line for people, whose texts would be rounded twice."""
    nodes, devices, trained = row["nodes"], row["devices"], row["trained_epochs"]
    here = "" if trained == f"{row['epochs']}" else f" ({trained} of them in this run)"
    return (
        f"{nodes} node{'s' * (nodes > 1)}, {devices} {row['device']} process{'es' * (devices > 1)}, "
        f"batch {row['batch']} each, {row['epochs']} epoch{'s' * (row['epochs'] > 1)}{here}: "
        f"{duration(float(row['seconds']))}, accuracy {last.accuracy:.2%}, loss {last.test_loss:.4f}"
    )
