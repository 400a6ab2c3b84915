"""Readers that leave, and the time that a run says it took."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.engine.progress import start_logging
from common.errors import named, printable, shortened, utf8
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


def test_a_search_goes_on_when_its_log_is_on_a_full_disk(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, *TOYS, "5", "-v", *OPTIONS, "--results", str(tmp_path)],
            cwd=ROOT, stdout=full, stderr=full, timeout=PATIENCE,
        )  # fmt: skip
    assert done.returncode == 0 and len(journal_lines(tmp_path)) == 5 and (tmp_path / "report.html").exists()
    end = json.loads((tmp_path / "journal.jsonl").read_text().splitlines()[-1])["end"]
    assert end["complete"] and "stderr: No space left on device" in end["lost_output"]


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_a_search_goes_on_when_its_streams_are_closed(tmp_path: Path, closed: str) -> None:
    command = f"exec {sys.executable} {' '.join(TOYS)} 3 -v {' '.join(OPTIONS)} --results {tmp_path} {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, timeout=PATIENCE, check=True, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert len(journal_lines(tmp_path)) == 3 and (tmp_path / "report.html").exists()


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


def test_texts_of_others_are_escaped_cut_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    half = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert printable(f"\x1b[2J{half} é") == r"\x1b[2Jcaf\udce9 é" and utf8(f"{half} é") == r"caf\udce9 é"
    assert shortened("x" * 10) == "x" * 10
    cut = shortened("a" * 70_000 + "b" * 70_000)
    assert len(cut) <= 64 << 10 and cut[0] == "a" and cut[-1] == "b" and "characters were cut" in cut
    assert named("abc") == "a, b, c" and named([]) == "none" and named(range(100)).endswith("19 and 80 others")
    log = logging.getLogger("common")
    before = log.handlers[:], log.propagate, log.level
    try:
        start_logging(0, "host", 0)
        log.error("trial %s\n%s", half, "\x1b]0;owned\x07" + "x" * 1_000_000)
    finally:
        log.handlers[:], log.propagate, log.level = before
    said = capsys.readouterr().err
    assert r"trial caf\udce9" in said and r"\x1b]0;owned\x07" in said and len(said) < 20_000
    assert all(line.isprintable() for line in said.splitlines()) and "characters were cut" in said
