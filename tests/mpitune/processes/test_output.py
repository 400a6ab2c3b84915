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

from mpitune.engine.progress import start_logging
from mpitune.errors import Exit, named, printable, shortened, utf8
from mpitune.options import RunOptions
from mpitune.processes.output import outliving
from tests.helpers import PATIENCE, ROOT, TOYS, journal_lines

OPTIONS = ("--gpu", "none", "--workers", "1")


def in_shell(command: str, where: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """What becomes of `python COMMAND` whose streams the shell leads elsewhere."""
    words = f"exec {sys.executable} {command} {where}"
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    return subprocess.run(
        ["bash", "-c", words], cwd=ROOT, env=environ, timeout=PATIENCE, capture_output=True, text=True
    )


SEARCH = """
import sys
from mpitune import Choice, Float, search

def told(study, trial):
    print("trial", trial.number, "é" * 9000)

study = search(
    lambda trial: trial.params["x"], {"x": Float(0, 1), "of": Choice([["é"]])}, n_trials=3, minimize="loss",
    results=sys.argv[1], workers=1, callbacks=[told],
)
assert len(study.trials) == 3
if sys.argv[2:]:
    print(*sys.argv[2:])
"""
COMMAND = f"{' '.join(TOYS)} 3 -v {' '.join(OPTIONS)} --results"
CASES = [("script", "> /dev/full 2>&1"), ("script", ">&- 2>&- <&-"), ("command", "> >(:) 2> >(:)")]


@pytest.mark.parametrize(("kind", "where"), CASES)
def test_a_search_goes_on_without_its_log(tmp_path: Path, kind: str, where: str) -> None:
    """Of a script or a command: its reader has left, its disk is full, its streams are closed."""
    command = COMMAND
    if kind != "command":
        (tmp_path / "script.py").write_text(SEARCH)
        command = f"{tmp_path}/script.py"
    done = in_shell(f"{command} {tmp_path}/r", where)
    assert done.returncode == 0, done.stderr
    assert not any(word in done.stderr for word in ("Traceback", "BrokenPipe", "Exception ignored")), done.stderr
    assert len(journal_lines(tmp_path / "r")) == 3
    end = json.loads((tmp_path / "r" / "journal.jsonl").read_text().splitlines()[-1])["end"]
    assert end["complete"] and (tmp_path / "r" / "report.html").exists()


def of_script(folder: Path, script: str, where: str = "", *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(script)
    return in_shell(f"{folder}/script.py {folder}/r {' '.join(arguments)}", where)


@pytest.mark.slow
def test_errors_and_letters_that_cannot_be_written_keep_the_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of_script(tmp_path, SEARCH.replace("n_trials=3", "n_trials=-3"), "2> /dev/full").returncode == Exit.USAGE
    (tmp_path / "words.py").write_text("print('words')")
    done = in_shell(f"-m mpitune --sklearn {tmp_path}/words.py", ">&-")
    assert done.returncode == 0 and "Traceback" not in done.stderr
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = of_script(tmp_path, SEARCH)
    assert done.returncode == 0 and "trial 0 \\xe9\\xe9" in done.stdout, done.stderr


def test_a_disk_that_is_full_for_a_while_loses_what_was_said_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what was lost nor the script's stream itself is touched later."""
    log, full = tmp_path / "log", os.open("/dev/full", os.O_WRONLY)
    with open(log, "w") as stream:
        own = os.dup(stream.fileno())
        monkeypatch.setattr(sys, "stdout", stream)
        with outliving():
            os.dup2(full, stream.fileno())
            print("lost", flush=True)
            os.dup2(own, stream.fileno())
            print("kept")
        assert sys.stdout is stream
    os.close(own)
    os.close(full)
    assert log.read_text() == "kept\n"


def test_elsewhere_than_on_linux_one_line_says_so(program: Any, tmp_path: Path) -> None:
    code = "import sys; from mpitune.cli import run; from tests.toys import Toy; sys.platform = 'darwin'; run(Toy)"
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
    log = logging.getLogger("mpitune")
    before = log.handlers[:], log.propagate, log.level
    try:
        start_logging(0, RunOptions())
        log.error("trial %s\n%s", half, "\x1b]0;owned\x07" + "x" * 1_000_000)
    finally:
        log.handlers[:], log.propagate, log.level = before
    said = capsys.readouterr().err
    assert r"trial caf\udce9" in said and r"\x1b]0;owned\x07" in said and len(said) < 20_000
    assert all(line.isprintable() for line in said.splitlines()) and "characters were cut" in said
