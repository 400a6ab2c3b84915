"""What trials print: each line is shown with the key of its trial, and not too many."""

import logging
import os
import subprocess
import sys
import time
import warnings
from collections import Counter
from typing import Any

import pytest

from mpitune import Float, RunOptions
from mpitune.engine.printed import MOST_LINES
from tests.mpitune.optimize.objectives import searched

SPACE = {"x": Float(0, 1)}


def said(stderr: str) -> list[str]:
    """The lines of trials in a log, without time and place."""
    return [line.partition(" trial ")[2] for line in stderr.splitlines() if " trial t0" in line]


def test_each_line_has_the_key_of_its_trial(capfd: Any) -> None:
    """Those of Python, of a program, of the file descriptor, and one without an end. A warning is shown once."""

    def objective(trial: Any) -> float:
        warnings.warn("thin ice", stacklevel=1)
        print("python", trial.number)
        time.sleep(0.15)  # longer than what goes without a mark
        subprocess.run(["echo", f"program {trial.number}"], check=True)
        os.write(2, b"descriptor %d\n" % trial.number)
        print("no end", trial.number, end="", file=sys.stderr)
        return 1.0

    searched(objective, SPACE, n_trials=4, workers=2, options=RunOptions())
    lines = Counter(said(capfd.readouterr().err))
    for n in range(4):
        for what in ("python", "program", "descriptor", "no end"):
            assert lines[f"t{n:06}: {what} {n}"] == 1, lines
    (warning,) = (line for line in lines.elements() if "UserWarning: thin ice" in line)
    assert "test_printed.py:" in warning
    searched(objective, SPACE, n_trials=2, workers=1)  # which is quiet
    assert not said(capfd.readouterr().err) and logging.getLogger("mpitune").level == logging.NOTSET


@pytest.mark.parametrize("write", [print, lambda line: sys.stdout.writelines([line, "\n"])])
def test_short_trials_have_their_keys_too(capfd: Any, write: Any) -> None:
    def objective(trial: Any) -> float:
        write(f"number {trial.number}")
        return 1.0

    searched(objective, SPACE, n_trials=15, workers=1, options=RunOptions())
    assert said(capfd.readouterr().err) == [f"t{n:06}: number {n}" for n in range(15)]


def test_a_flood_is_cut(capfd: Any) -> None:
    def objective(trial: Any) -> float:
        for n in range(3000):
            print(f"line {n} of {trial.number}")
        return 1.0

    began = time.monotonic()
    searched(objective, SPACE, n_trials=2, workers=1, options=RunOptions())
    seconds = time.monotonic() - began
    log = capfd.readouterr().err
    assert 0 < len(said(log)) <= MOST_LINES * (seconds + 2) and "more lines" in log
