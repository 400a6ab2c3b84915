"""What `python -m mpitune status` says of a study, from its journal and what rank 0 says while it runs."""

import json
import os
import re
import signal
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mpitune import Float, load
from mpitune.engine.progress import STATUS_FILE, Overview, note_of, read_status_file
from mpitune.errors import Exit
from mpitune.optimize.strategies import Halving
from mpitune.storage.history import JOURNAL, read_study
from mpitune.storage.journal import Journal
from mpitune.tools.status import described, look, main, now, status_of
from mpitune.trial import Place, Result, Trial
from tests.helpers import PATIENCE, ROOT, TOYS, start, studied, wait_for_lines, wait_until
from tests.mpitune.optimize.objectives import searched, stepped


def test_running_stopped_complete_and_failed(program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(folder: Path, status: Exit = Exit.DONE) -> str:
        assert main([str(folder)]) == status
        return capsys.readouterr().out

    folder = tmp_path / "r"
    job = start(folder, "60", "--seconds", "1")  # half a minute, for all that happens before its end
    wait_for_lines(folder, 1)
    assert ": running" in said(folder, Exit.STOPPED)
    assert wait_until(lambda: re.search(r"running    t\d+ at \S+/cpu for ", said(folder, Exit.STOPPED)))
    job.send_signal(signal.SIGKILL)
    job.communicate()
    text = said(folder, Exit.STOPPED)
    assert ": stopped" in text
    program(*TOYS, "60", "--gpu", "none", "--workers", "2", "--results", folder)
    text = said(folder)
    assert ": complete" in text and "60 finished, 0 of them failed" in text and "runs       2" in text
    studied(tmp_path / "f", 3, at=("t1=exception",))
    text = said(tmp_path / "f", Exit.FAILED_TRIALS)
    assert "failed     t1 at" in text and "a point outside the domain" in text


@pytest.mark.slow
def test_one_look_for_scripts_and_lines_that_print_speed_up(
    program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for workers in "12":
        program(*TOYS, "8", "--seconds", "0.2", "--gpu", "none", "--workers", workers, "--results", tmp_path / workers)
    assert main([str(tmp_path / "1"), "--json"]) == Exit.DONE
    said = json.loads(capsys.readouterr().out)
    assert (said["state"], said["finished"], said["failures"], said["seen"]) == ("complete", 8, [], None)
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "slurm" / "README.md").read_text(), re.DOTALL)
    monkeypatch.setattr(sys, "argv", ["-c", str(tmp_path / "2"), str(tmp_path / "1")])
    exec(lines, {})
    said = capsys.readouterr().out.splitlines()
    rows = [dict(zip(said[0].split(), map(float, row.split()), strict=True)) for row in said[1:]]
    took = [read_study(tmp_path / workers).ends[0]["seconds"] for workers in "12"]
    assert [row["slots"] for row in rows] == [1, 2] and all(0 < row["busy"] <= 1 for row in rows)
    assert [row["speed_up"] for row in rows] == pytest.approx([1, took[0] / took[1]], abs=0.01)
    assert [row["efficiency"] for row in rows] == pytest.approx([1, took[0] / took[1] / 2], abs=0.01)


def test_stages_are_not_called_trials(tmp_path: Path) -> None:
    study = searched(stepped, {"x": Float(0, 0.9), "n": 1}, strategy=Halving(9), n_trials=9, results=tmp_path / "r")
    lines = described(status_of(tmp_path / "r", read_study(tmp_path / "r"), running=False))
    assert len(study) == 9 and "trials     13 stages of 9 trials finished, 0 of them failed" in lines


def test_rank_0_that_is_silent_is_said(tmp_path: Path) -> None:
    """Its main thread waits for a file system that hangs, or the whole job is suspended."""
    job = start(tmp_path / "r", 4, "--seconds", 60)
    wait_for_lines(tmp_path / "r", 0)
    while read_status_file(tmp_path / "r") is None:
        time.sleep(0.05)
    os.kill(job.pid, signal.SIGSTOP)
    os.waitpid(job.pid, os.WUNTRACED)  # until it has stopped, or it might replace the file once more
    try:
        content = json.loads((tmp_path / "r" / STATUS_FILE).read_text())
        (tmp_path / "r" / STATUS_FILE).write_text(json.dumps({**content, "time": time.time() - 100}))
        status = look(tmp_path / "r")
        assert status.state == "running" and status.seen is not None
        assert re.search(r" min \d\d s ago", now(status.seen))
    finally:
        os.kill(job.pid, signal.SIGKILL)
        job.wait(PATIENCE)


def test_what_a_stranger_wrote_does_not_move_the_cursor(tmp_path: Path, capsys: Any) -> None:
    wipe = "\x1b[2J\x9b2J\rdone"
    place = Place(f"host{wipe}", 0, 0, f"cpu{wipe}")
    result = Result(f"key{wipe}", error=f"Error{wipe}", seconds=1.0, place=place)
    with closing(Journal(tmp_path, {"settings": {"experiment": f"toy{wipe}"}})) as journal:
        journal.append([(Trial(result.key, {}), result)])
    assert main([str(tmp_path)]) == Exit.STOPPED
    said = capsys.readouterr().out
    assert all(line.isprintable() for line in said.splitlines()) and said.count(r"\x1b[2J\x9b2J\rdone") == 4


def test_the_folder_of_a_halving_search_has_a_study_for_each_iteration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (2, 10):
        studied(tmp_path / f"iteration{number}", 2)
    (tmp_path / "iteration11").mkdir()
    (tmp_path / "iteration11" / JOURNAL).touch()  # it was killed before it began
    assert main([str(tmp_path)]) == Exit.DONE
    said = capsys.readouterr().out
    assert re.findall(r"iteration(\d+): complete", said) == ["2", "10"]
    assert "studies    2 have begun; only the search knows whether more follow" in said
    with open(tmp_path / "iteration2" / JOURNAL, "r+b") as file:
        file.truncate(os.path.getsize(file.name) - 20)
    assert main([str(tmp_path)]) == Exit.STOPPED
    os.rename(tmp_path / "iteration2", tmp_path / "iteration10" / "data-1")  # as of a second outer fold
    assert main([str(tmp_path / "iteration10")]) == main([str(tmp_path)]) == Exit.STOPPED
    prefixes = {key.rpartition("/")[0] for key in load(tmp_path / "iteration10").trials.index}
    assert prefixes == {"", "data-1"} and load(tmp_path / "iteration10").winner_ is None


def test_no_time_left_is_not_said_before_the_end() -> None:
    seen = Overview(3, 0, 4, 1, 1, {}, [], 0.0)
    assert "left" not in note_of(seen) and "2.0 s left" in note_of(replace(seen, left=2.0))
