"""An objective that raises: what its author is told, that the worker goes on, and that nothing is blamed for it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mpitune import Float, Int, RunOptions
from mpitune.errors import StudyError
from tests.helpers import journal_lines
from tests.mpitune.optimize.objectives import searched

SCRIPT = """
import sys
import numpy as np
from mpitune import Float, search

def helper(x):
    return np.linalg.inv(np.zeros((2, 2))) * x

def objective(trial):
    return helper(trial.params["x"])

search(objective, {"x": Float(0, 1)}, n_trials=int(sys.argv[1]), minimize="loss", workers=2)
"""


def told(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The last message of a script that has ended with an error, without what points at a part of a line."""
    lines = done.stderr.splitlines()
    first = next(n for n, line in enumerate(lines) if "the objective raised" in line and "rank 0" not in line)
    assert first <= 5, "the search says little before"
    return [line for line in lines[first:] if line.strip(" ^~")]


def test_a_mistake_is_told_with_the_lines_of_its_author(program: Any, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = program(tmp_path / "script.py", 40, status=1, cwd=tmp_path)
    first, *calls, where, fix = told(done)
    assert first == "script.py: the objective raised numpy.linalg.LinAlgError: Singular matrix"
    assert [line.strip() for line in calls] == [
        f'File "{tmp_path / "script.py"}", line 10, in objective',
        'return helper(trial.params["x"])',
        f'File "{tmp_path / "script.py"}", line 7, in helper',
        "return np.linalg.inv(np.zeros((2, 2))) * x",
    ], "calls within libraries are left out"
    assert where.startswith("in trial t00000") and " with x = 0." in where and fix.startswith("Correct that")
    assert "died" not in done.stderr and "Traceback" not in done.stderr


COMMAND = """
import sys
from mpitune import Float, search
ends = "if test $1 = 0.5; then echo '{{\\"loss\\": 1}}'; else echo no such file >&2; exit 3; fi"
command = ["sh", "-c", ends, "sh", "{x}"]
how = dict(n_trials=7, minimize="loss", workers=2, results=sys.argv[1], enqueue=[{"x": 0.5}])
search(command, {"x": Float(0, 1)}, **how)
"""


def test_failures_that_differ_in_their_parameters_alone_are_told_once_and_counted(program: Any, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(COMMAND)
    done = program(tmp_path / "script.py", tmp_path / "r", cwd=tmp_path)
    assert done.stderr.count("no such file") <= 3 * 2, "when it happens, at the end, and as the reason of the end"
    assert " and 5 more: " in done.stderr


CELLS = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for part in {parts!r}:
    shell.run_cell(part, store_history=True)
"""


def test_cells_of_a_notebook_are_shown_too_and_an_error_that_their_reader_can_mend_is_one_line(
    program: Any, tmp_path: Path
) -> None:
    pytest.importorskip("IPython")
    parts = [part.replace("int(sys.argv[1])", "4") for part in SCRIPT.split("\n\n")]
    parts.append("search(objective, {}, minimize='loss', n_trials=1, workers=-1)")
    done = program("-c", CELLS.format(parts=parts), cwd=tmp_path, env={"IPYTHONDIR": str(tmp_path)}, status=None)
    assert "StudyError: the objective raised numpy.linalg.LinAlgError" in done.stdout, done.stderr
    assert "    return np.linalg.inv(np.zeros((2, 2))) * x\n" in done.stdout and "run_study" not in done.stdout
    assert done.stdout.endswith("\nUsageError: workers=-1 is too small: give at least 0\n")


def test_the_worker_goes_on_unless_the_objective_says_otherwise() -> None:
    """A trial that fails does not cost a process; it is still tried twice, and the others are as before."""

    def objective(trial: Any) -> dict[str, float]:
        if trial.params["n"] % 3 == 0:
            raise EOFError("no more")
        return {"loss": 1.0, "pid": float(os.getpid())}

    class EndsIt:
        keeps_worker = False

        def __call__(self, trial: Any) -> dict[str, float]:
            return objective(trial)

    how: dict[str, Any] = dict(strategy="grid", workers=1)
    pids = []
    for one in (objective, EndsIt()):
        study = searched(one, {"n": Int(1, 9)}, **how)
        assert [t.state for t in study.trials] == ["complete", "complete", "failed"] * 3
        assert (study.trials[2].error or "").endswith("EOFError: no more")
        assert "mpitune/engine" not in (study.trials[2].error or "")
        pids.append(len({t.values["pid"] for t in study.trials if t.values}))
    assert pids[0] == 1 and pids[1] > 1


def test_what_has_failed_in_every_trial_is_tried_again(tmp_path: Path) -> None:
    """The journal blames no trial where nothing has worked: the objective was corrected."""

    def objective(trial: Any) -> float:
        if (tmp_path / "broken").exists():
            raise OSError("no scratch")
        return float(trial.params["x"])

    (tmp_path / "broken").touch()
    how: dict[str, Any] = dict(n_trials=3, workers=1, results=tmp_path / "r")
    for _ in range(2):
        with pytest.raises(StudyError, match="^the objective raised OSError: no scratch\n"):
            searched(objective, {"x": Float(0, 1)}, **how)
    (tmp_path / "broken").unlink()
    study = searched(objective, {"x": Float(0, 1)}, **how)
    assert [t.state for t in study.trials] == ["complete"] * 3
    asked = len(journal_lines(tmp_path / "r"))
    assert len(searched(objective, {"x": Float(0, 1)}, **how)) == 3 and len(journal_lines(tmp_path / "r")) == asked


def test_what_a_worker_begins_with_is_told_likewise(capfd: Any) -> None:
    """Each worker of a search raises as it is set up: that is said once, not for each of them."""

    class Objective:
        def setup(self, device: str) -> None:
            Path("/no/such/file").read_text()

        def __call__(self, trial: Any) -> float:
            return 1.0

    with pytest.raises(
        StudyError, match=r"^the objective raised FileNotFoundError(.*\n)*.*read_text(.*\n)*at .*/cpu; no"
    ):
        searched(Objective, {"x": Float(0, 1)}, n_trials=9, workers=2, options=RunOptions())
    log = capfd.readouterr().err
    assert log.count("the objective raised, so its worker ends: FileNotFoundError") == 1 and "died" not in log
