"""The one command for a machine with a GPU: its steps end, whatever they do, and its summary says how."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.validate import Step, agree, run_all, steps, summary
from mpitune.errors import Exit
from tests.helpers import ROOT


def test_steps_that_fail_hang_or_find_no_time(tmp_path: Path) -> None:
    every = [
        Step("good", ["python", "-c", "import os; print(os.environ['WORD'])"], 60, {"WORD": "heard"}),
        Step("bad, twice", ["python", "-c", "print('1 FAILED', *'abc', 'why', sep='\\n'); raise SystemExit(3)"], 60),
        Step("hangs", ["sh", "-c", "echo begun; sleep 600 & sleep 600"], 0.5),
    ]
    found = run_all(every, tmp_path, 60)
    assert [done.found for done in found] == ["passed", "status 3", "not done within 0 s"]
    assert "heard" in (tmp_path / "00-good.txt").read_text()
    text = summary(found, "where")
    assert text.startswith("where\n\n| step") and "1 FAILED\nb\nc\nwhy" in text and "heard" not in text
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


def test_without_a_gpu_what_needs_one_is_skipped(program: Any, tmp_path: Path) -> None:
    done = program(
        "-m", "benchmarks.validate", "--folder", tmp_path, "--minutes", "0", env={"CUDA_VISIBLE_DEVICES": ""},
        status=Exit.ERROR,
    )  # fmt: skip
    assert done.stdout.startswith("no GPU is visible (CUDA_VISIBLE_DEVICES is ''): only what needs none is run")
    rows = [row.split("|")[1:3] for row in (tmp_path / "summary.md").read_text().splitlines() if row.startswith("| ")]
    found = {name.strip(): said.strip() for name, said in rows[1:]}
    assert found.pop("self-checks") == found.pop("networks, GPU") == "skipped: no GPU"
    assert found["doctor"] == found["networks, CPU"] == "no time was left"


def test_the_doctor_begins_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mpitune", "doctor", "--validate"]
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert "only what needs none is run" in process.stdout.readline()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
