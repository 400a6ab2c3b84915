"""The state of a training after an epoch, in a file that is whole or not there."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from common.errors import StorageError, UsageError
from common.storage.files import written_whole
from mnist_nn.parallel.log import Epoch

NAME, FORMAT = "checkpoint.pt", 1


class Checkpoint(NamedTuple):
    """epochs: those that are done. weights, velocity: by name, on the CPU; no velocity without momentum."""

    epochs: list[Epoch]
    weights: dict[str, Tensor]
    velocity: dict[str, Tensor]


def write(folder: Path, settings: dict[str, Any], state: Checkpoint) -> None:
    """Replace the checkpoint in `folder`. settings: plain values that a continuation must share."""
    content = {**state._asdict(), "epochs": [asdict(epoch) for epoch in state.epochs]}
    try:
        with written_whole(folder / NAME) as file:
            torch.save({"format": FORMAT, "settings": settings, **content}, file)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written ({error.strerror}): mend that, then --resume") from error


def read(folder: Path, settings: dict[str, Any]) -> Checkpoint | None:
    """The checkpoint in `folder`; None where there is none.

    Raises UsageError for a file that is no checkpoint, and for one of other settings, by name.
    """
    path = folder / NAME
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}, not {FORMAT}")
        stored = content["settings"]
        state = Checkpoint([Epoch(**epoch) for epoch in content["epochs"]], content["weights"], content["velocity"])
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged file fails in many ways, and the fix is the same
        raise UsageError(f"{path} is no checkpoint of this program: train anew, without --resume") from error
    for name, value in settings.items():
        if stored.get(name) != value:
            raise UsageError(
                f"--resume: {path} has {name.replace('_', '-')} = {stored.get(name)}, this command {value}: "
                f"give the same, or train anew"
            )
    return state
