"""The state of a training after an epoch, or after a step, in a file that is whole or not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnist_nn.parallel.log import Epoch
from mpitune.errors import UsageError
from mpitune.storage.files import written_whole

CHECKPOINT, CHECKPOINT_FORMAT, BEFORE = "checkpoint.pt", 4, "checkpoint-before.pt"


class Begun(NamedTuple):
    """What is done of an epoch that is not done: images, steps, and the sum of the images' losses."""

    images: int = 0
    steps: int = 0
    loss: float = 0.0


class Checkpoint(NamedTuple):
    """What a training continues from: epochs and number of steps that are done, weights, states of PyTorch."""

    epochs: list[Epoch]
    steps: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    begun: Begun


def write(folder: Path, settings: dict[str, Any], state: Checkpoint) -> None:
    """Replace the checkpoint in `folder`; a continuation must have `settings` in common. Raises OSError."""
    plain = state._replace(epochs=[tuple(epoch) for epoch in state.epochs], begun=tuple(state.begun))  # type: ignore
    with written_whole(folder / CHECKPOINT) as file:
        torch.save({"format": CHECKPOINT_FORMAT, "settings": settings, **plain._asdict()}, file)


def read(folder: Path, settings: dict[str, Any]) -> Checkpoint | None:
    """The checkpoint in `folder`, None where there is none. Raises UsageError for one of other settings, or none."""
    path = folder / CHECKPOINT
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content.pop("format") != CHECKPOINT_FORMAT:
            raise ValueError("another format")
        stored = content.pop("settings")
        content |= {"begun": Begun(*content["begun"]), "epochs": [Epoch(*epoch) for epoch in content["epochs"]]}
        state = Checkpoint(**content)
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
