"""What `python -m common.status` says of a study, from its journal alone."""

import signal
from pathlib import Path
from typing import Any

from common.errors import Exit
from tests.common.test_engine import start, wait_for_lines
from tests.helpers import TOYS

STATUS = ("-m", "common.status")


def test_running_stopped_complete_and_failed(program: Any, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    job = start(folder, "60", "--seconds", "0.1")
    wait_for_lines(folder, 3)
    assert ": running" in program(*STATUS, folder, status=Exit.STOPPED).stdout
    job.send_signal(signal.SIGKILL)
    job.communicate()
    text = program(*STATUS, folder, status=Exit.STOPPED).stdout
    assert ": stopped" in text and "0/1/cpu" in text
    program(*TOYS, "60", "--gpu", "none", "--workers", "2", "--results", folder)
    text = program(*STATUS, folder).stdout
    assert ": complete" in text and "60 finished, 0 of them failed" in text and "runs       2" in text
    program(*TOYS, "3", "--gpu", "none", "--fault", "c_exit", "--at", "t1", "--results", tmp_path / "f", status=3)
    text = program(*STATUS, tmp_path / "f", status=Exit.FAILED_TRIALS).stdout
    assert "failed     t1 at" in text and "exit code 7" in text


def test_no_study_is_one_line(program: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "nowhere", tmp_path, tmp_path / "file"):
        done = program(*STATUS, folder, status=Exit.USAGE)
        assert done.stderr.count("\n") == 1 and done.stdout == ""
