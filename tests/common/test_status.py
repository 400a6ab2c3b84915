"""What `python -m common.status` says of a study, from its journal alone."""

import signal
from contextlib import closing
from pathlib import Path
from typing import Any

from common.errors import Exit
from common.status import main
from common.storage.journal import Journal
from common.trial import Place, Result, Trial
from tests.helpers import TOYS, start, wait_for_lines

STATUS = ("-m", "common.status")


def test_running_stopped_complete_and_failed(program: Any, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    job = start(folder, "60", "--seconds", "1")  # half a minute, for all that happens before its end
    wait_for_lines(folder, 1)
    assert ": running" in program(*STATUS, folder, status=Exit.STOPPED).stdout
    job.send_signal(signal.SIGKILL)
    job.communicate()
    text = program(*STATUS, folder, status=Exit.STOPPED).stdout
    assert ": stopped" in text and "0/1/cpu" in text
    program(*TOYS, "60", "--gpu", "none", "--workers", "2", "--results", folder)
    text = program(*STATUS, folder).stdout
    assert ": complete" in text and "60 finished, 0 of them failed" in text and "runs       2" in text
    program(*TOYS, "3", "--gpu", "none", "--at", "t1=c_exit", "--results", tmp_path / "f", status=3)
    text = program(*STATUS, tmp_path / "f", status=Exit.FAILED_TRIALS).stdout
    assert "failed     t1 at" in text and "exit code 7" in text


def test_no_study_is_one_line(program: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "nowhere", tmp_path, tmp_path / "file"):
        done = program(*STATUS, folder, status=Exit.USAGE)
        assert done.stderr.count("\n") == 1 and done.stdout == ""


def test_what_a_stranger_wrote_does_not_move_the_cursor(tmp_path: Path, capsys: Any) -> None:
    wipe = "\x1b[2J\x9b2J\rdone"
    place = Place(f"host{wipe}", 0, 0, f"cpu{wipe}")
    result = Result(f"key{wipe}", error=f"Error{wipe}", seconds=1.0, place=place)
    with closing(Journal(tmp_path, {"settings": {"experiment": f"toy{wipe}"}})) as journal:
        journal.append([(Trial(result.key, {}), result)])
    assert main([str(tmp_path)]) == Exit.STOPPED
    said = capsys.readouterr().out
    assert all(line.isprintable() for line in said.splitlines()) and said.count("?[2J?2J?done") == 6
