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
from mpitune.output import lost_output, outliving
from mpitune.storage.history import read_journal
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
    assert without_reader("stdout", "-m", "mpitune", "status", tmp_path) == (0, "")


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


SEARCH = """
import sys
from mpitune import Choice, Float, search

def told(study, trial):
    print("trial", trial.number, "é" * 9000)

study = search(
    lambda trial: trial.params["x"], {"x": Float(0, 1), "of": Choice(["é"])}, n_trials=3, minimize="loss",
    results=sys.argv[1], workers=1, callbacks=[told],
)
assert len(study.trials) == 3
if sys.argv[2:]:
    print(*sys.argv[2:])
"""
GRID = """
import sys
from sklearn.datasets import load_iris
from sklearn.svm import SVC
from mpitune.sklearn import GridSearchCV
search = GridSearchCV(SVC(), {"C": [1, 2]}, workers=1, results=sys.argv[1], verbose=3).fit(*load_iris(return_X_y=True))
assert len(search.cv_results_["params"]) == 2
"""


@pytest.mark.parametrize(
    "where", ["> /dev/full", "2> /dev/full", "> /dev/full 2>&1", ">&-", "2>&-", ">&- 2>&- <&-", "a grid > /dev/full"]
)
def test_a_search_of_a_script_goes_on_without_its_log(tmp_path: Path, where: str) -> None:
    script, n = (GRID, 10) if "grid" in where else (SEARCH, 3)
    done = of_shell(tmp_path, script, where.removeprefix("a grid"))
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert len(journal_lines(tmp_path / "r")) == n
    end = json.loads((tmp_path / "r" / "journal.jsonl").read_text().splitlines()[-1])["end"]
    assert end["complete"] and ("No space left on device" in end.get("lost_output", "")) == ("full" in where)


def of_shell(folder: Path, script: str, where: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What becomes of a script whose streams the shell leads elsewhere."""
    (folder / "script.py").write_text(script)
    words = f"exec {sys.executable} {folder}/script.py {folder}/r {' '.join(arguments)} {where}"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(["sh", "-c", words], env=environ, timeout=PATIENCE, capture_output=True, text=True)


def test_what_a_script_prints_itself_is_its_own_affair(tmp_path: Path) -> None:
    """Where it cannot be written, Python raises at once or, where it keeps it until its end, gives the status 120."""
    done = of_shell(tmp_path, SEARCH, "> /dev/full", "my", "words")
    assert done.returncode in (1, 120) and len(journal_lines(tmp_path / "r")) == 3
    assert of_shell(tmp_path, SEARCH, "", "my", "words").stdout.endswith(
        "results: " + str(tmp_path / "r") + "\nmy words\n"
    )


def test_an_error_that_nobody_can_read_keeps_its_status(tmp_path: Path) -> None:
    assert of_shell(tmp_path, SEARCH.replace("n_trials=3", "n_trials=-3"), "2> /dev/full").returncode == Exit.USAGE


def test_a_script_that_is_accelerated_needs_no_stdout(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('words')")
    words = f"exec {sys.executable} -m mpitune accelerate {tmp_path}/script.py >&-"
    done = subprocess.run(["sh", "-c", words], cwd=ROOT, timeout=PATIENCE, capture_output=True, text=True)
    assert done.returncode == 0 and "nothing was replaced" in done.stderr and "Traceback" not in done.stderr


def test_letters_that_a_terminal_does_not_have_are_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = of_shell(tmp_path, SEARCH, "")
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
            assert lost_output() == "stdout: No space left on device"
            os.dup2(own, stream.fileno())
            print("kept")
        assert sys.stdout is stream and not lost_output()
    os.close(own)
    os.close(full)
    assert log.read_text() == "kept\n"


@pytest.mark.parametrize(
    "program", [TOYS, ("-m", "mpitune", "doctor"), ("-m", "mnist_nn.predict"), ("-m", "mnist_nn.ddp")]
)
def test_help_that_nobody_reads_is_no_error(program: tuple[str, ...]) -> None:
    assert without_reader("stdout", *program, "--help") == (0, "")


SLOW = """
import time
from tests.toys import Toy
from mpitune.cli import run

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
        start_logging(0, "host", 0)
        log.error("trial %s\n%s", half, "\x1b]0;owned\x07" + "x" * 1_000_000)
    finally:
        log.handlers[:], log.propagate, log.level = before
    said = capsys.readouterr().err
    assert r"trial caf\udce9" in said and r"\x1b]0;owned\x07" in said and len(said) < 20_000
    assert all(line.isprintable() for line in said.splitlines()) and "characters were cut" in said
