"""Readers that leave, and the time that a run says it took."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.storage.history import read_journal
from tests.helpers import PATIENCE, ROOT, TOYS, journal_lines

OPTIONS = ("--gpu", "none", "--workers", "1")


def without_reader(stream: str, *arguments: Any) -> tuple[int, str]:
    """Exit status of `python ARGUMENTS` when nobody reads one of its streams any more, and what the other says."""
    other = "stderr" if stream == "stdout" else "stdout"
    read, write = os.pipe()
    os.close(read)
    streams: dict[str, Any] = {stream: write, other: subprocess.PIPE}
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environ, text=True, timeout=PATIENCE, **streams)
    os.close(write)
    return done.returncode, getattr(done, other)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_search_goes_on_when_its_reader_leaves(tmp_path: Path, stream: str) -> None:
    status, said = without_reader(stream, *TOYS, 5, "-v", *OPTIONS, "--results", tmp_path)
    assert status == 0 and len(journal_lines(tmp_path)) == 5
    assert "Traceback" not in said and "BrokenPipe" not in said and "Exception ignored" not in said
    assert without_reader("stdout", "-m", "common.status", tmp_path) == (0, "")


@pytest.mark.parametrize("program", [TOYS, ("-m", "common.doctor"), ("-m", "mnist_nn.predict"), ("-m", "mnist_nn.ddp")])
def test_help_that_nobody_reads_is_no_error(program: tuple[str, ...]) -> None:
    assert without_reader("stdout", *program, "--help") == (0, "")


SLOW = """
import time
from tests.toys import Toy
from common.cli import run

class Slow(Toy):
    def report(self, *arguments):
        time.sleep(3)

run(Slow)
"""


def test_the_time_taken_includes_the_report(program: Any, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    done = program(tmp_path / "slow.py", "1", *OPTIONS, "--results", tmp_path / "r")
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("time taken: ")]
    history = read_journal(tmp_path / "r")
    assert history is not None and history.ends[0]["seconds"] > 3
    assert float(said.split()[2]) > 3


def test_elsewhere_than_on_linux_one_line_says_so(program: Any, tmp_path: Path) -> None:
    code = "import sys; from common.cli import run; from tests.toys import Toy; sys.platform = 'darwin'; run(Toy)"
    done = program("-c", code, "3", "--results", tmp_path / "r", status=2)
    assert done.stderr.count("\n") == 1 and "runs on Linux (x86-64 or aarch64), not on darwin" in done.stderr
    assert not (tmp_path / "r").exists()
