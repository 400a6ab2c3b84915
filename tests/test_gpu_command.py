"""The one command for a machine with a GPU: its steps end, whatever they do, and its status tells the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mpitune.errors import Exit
from tests.gpu import Step, differ, run_all, status_of, steps, summary
from tests.programs import accepted


@pytest.mark.slow
def test_steps_that_fail_hang_or_find_no_time(tmp_path: Path) -> None:
    every = [
        Step("good", ["this"]),
        Step("bad", ["tests.programs", "mpitune status", "--no-such-option"]),
        Step("differs", lambda: "by much"),
        Step("not written", lambda: differ(tmp_path / "a", tmp_path / "b", "loss", 0.1)),
        Step("cannot", ["pytest"], "no_such_library"),
        Step("hangs", ["timeit", "-n", "1", "-r", "1", "__import__('time').sleep(600)"]),
        Step("late", ["this"]),
    ]
    done = run_all(every, tmp_path, 20)
    said = [one.said for one in done]
    assert said[:3] == ["passed", "status 1", "by much"] and said[3].startswith("FileNotFoundError")
    assert said[4] == "left out: no_such_library is not installed"
    assert said[5].startswith("not done within") and said[6] == "no time was left"
    assert "--no-such-option" in summary(done) and "Beautiful is better" not in summary(done)
    assert [status_of([one]) for one in done] == [0, 1, 1, 1, 0, 1, 1]


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
