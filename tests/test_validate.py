"""The one command for a machine with a GPU: its steps end, whatever they do, and its summary says how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.validate import Step, agree, run_all, steps, summary
from common.errors import Exit


def test_steps_that_fail_hang_or_find_no_time(tmp_path: Path) -> None:
    every = [
        Step("good", ["python", "-c", "import os; print(os.environ['WORD'])"], 60, {"WORD": "heard"}),
        Step("bad, twice", ["python", "-c", "print('why'); raise SystemExit(3)"], 60),
        Step("hangs", ["sh", "-c", "echo begun; sleep 600 & sleep 600"], 0.5),
    ]
    found = run_all(every, tmp_path, 60)
    assert [done.found for done in found] == ["passed", "status 3", "not done within 0 s"]
    assert "heard" in (tmp_path / "00-good.txt").read_text()
    text = summary(found, "where")
    assert text.startswith("where\n\n| step") and "why" in text and "heard" not in text
    assert [done.found for done in run_all(every, tmp_path, 0)] == ["no time was left"] * 3


@pytest.mark.slow
def test_every_step_is_a_command_that_there_is(tmp_path: Path, program: Any) -> None:
    modules = {step.words[step.words.index("-m") + 1] for step in steps(tmp_path) if "python" in step.words}
    for module in sorted(modules - {"pytest"}):
        program("-m", module, "--help")


def test_studies_are_compared(tmp_path: Path) -> None:
    def study(name: str, *errors: float) -> None:
        (tmp_path / name).mkdir()
        lines = [
            {"settings": {}},
            *({"key": f"t{n}", "values": {"error" if n else "loss": e}} for n, e in enumerate(errors)),
        ]
        (tmp_path / name / "journal.jsonl").write_text("\n".join(map(json.dumps, lines)))

    study("a", 0.10, 0.20)
    study("a-cpu", 0.11, 0.20)
    assert agree(tmp_path / "a") == ""
    study("b", 0.5, 0.5)
    study("b-cpu", 0.11, 0.20)
    assert "differs by 34.50%" in agree(tmp_path / "b")


@pytest.mark.parametrize("command", [("-m", "benchmarks.validate"), ("-m", "common.doctor", "--validate")])
def test_without_a_gpu_there_is_nothing_to_validate(command: tuple[str, ...], program: Any, tmp_path: Path) -> None:
    done = program(*command, env={"CUDA_VISIBLE_DEVICES": ""}, status=Exit.USAGE)
    assert "no GPU is visible (CUDA_VISIBLE_DEVICES is ''): there is nothing to validate" in done.stderr
