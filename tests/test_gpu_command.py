"""The one command for a machine with a GPU: its steps end, whatever they do, and its status tells the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpitune.errors import Exit
from tests.gpu import steps
from tests.programs import accepted


def test_every_step_is_a_command_that_there_is(tmp_path: Path) -> None:
    for step in steps(tmp_path):
        if not callable(step.does) and step.needs != "pytest":
            program, *words = map(str, step.does)
            if program == "mpitune":
                program, words = f"mpitune {words[0]}", words[1:]
            accepted(program, words)


def test_without_a_gpu_nothing_is_run(program: Any, tmp_path: Path) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": ""}
    done = program("-m", "tests.gpu", "--folder", tmp_path / "f", env=environ, status=Exit.USAGE)
    assert done.stderr == (
        "python -m tests.gpu: no GPU is visible (CUDA_VISIBLE_DEVICES is ''): run it on a machine with one\n"
    )
    assert not (tmp_path / "f").exists()
