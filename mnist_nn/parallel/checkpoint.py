"""The state of a training after an epoch, in a file that is whole or not there.

With fsdp the tensors lie beside it, in a folder that the file names (shards.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnist_nn.parallel.log import Epoch
from mpitune.errors import StorageError, UsageError
from mpitune.storage.files import written_whole

NAME, FORMAT, BEFORE = "checkpoint.pt", 2, "checkpoint-before.pt"


class Checkpoint(NamedTuple):
    """What a training continues from.

    Attributes:
        epochs: those that are done.
        progress: numbers by name, such as the steps that are done.
        tensors: "weights" and what the optimizer remembers of them, by kind and name, on the CPU; none where `shards`
            is the name of the folder that has them.
    """

    epochs: list[Epoch]
    progress: dict[str, float]
    tensors: dict[str, dict[str, Tensor]]
    shards: str = ""


def shards_of(n_epochs: int) -> str:
    """Name of the folder of the shares after so many epochs."""
    return f"checkpoint-{n_epochs}"


def write(folder: Path, settings: dict[str, Any], state: Checkpoint) -> None:
    """Replace the checkpoint in `folder`, and remove older shares.

    Args:
        folder: of the results.
        settings: plain values that a continuation must have in common with it.
        state: what a continuation begins with.

    Raises:
        StorageError: the folder cannot be written.
    """
    content = {**state._asdict(), "epochs": [asdict(epoch) for epoch in state.epochs]}
    try:
        with written_whole(folder / NAME) as file:
            torch.save({"format": FORMAT, "settings": settings, **content}, file)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written ({error.strerror}): fix that, then --resume") from error
    for other in folder.glob("checkpoint-[0-9]*"):
        if other.name != state.shards:
            shutil.rmtree(other, ignore_errors=True)


def set_aside(folder: Path) -> None:
    """Rename the checkpoint of an earlier training: it is kept, and no restart takes it."""
    with contextlib.suppress(FileNotFoundError):
        os.replace(folder / NAME, folder / BEFORE)


def read(folder: Path, settings: dict[str, Any]) -> Checkpoint | None:
    """The checkpoint in `folder`; None where there is none.

    Raises:
        UsageError: the file is no checkpoint, or one of other settings, which it names.
    """
    path = folder / NAME
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}, not {FORMAT}")
        stored = content["settings"]
        fields = {name: content[name] for name in ("progress", "tensors", "shards")}
        state = Checkpoint([Epoch(**epoch) for epoch in content["epochs"]], **fields)
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged file fails in many ways, and the fix is the same
        raise UsageError(f"{path} is not a checkpoint of this program: train again, without --resume") from error
    for name, value in settings.items():
        if stored.get(name) != value:
            raise UsageError(
                f"--resume: {path} has {name.replace('_', '-')} = {stored.get(name)}, this command {value}: "
                f"give the same, or train again"
            )
    return state
