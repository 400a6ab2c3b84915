"""A program's study of changed settings uses what the one before knows, wherever its start was killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from mpitune import Int, search
from mpitune.errors import UsageError
from mpitune.storage.history import read_study
from mpitune.storage.journal import Journal
from mpitune.trial import Result, Trial
from tests.helpers import PATIENCE, ROOT, table_without_run

SCRIPT = '''
import os, signal, sys
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from mpitune import Experiment, Trial, one_round, per_trial, run, setting
from mpitune.trial import Evaluation

here, calls = Path(__file__).parent, 0

def killed_at(function, number):
    """The function, before whose call of that number, counted over all of them, the process kills itself."""
    def instead(*args, **kwargs):
        global calls
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return function(*args, **kwargs)
    return instead

if "KILLED_AT" in os.environ:
    for name in ("rename", "replace", "mkdir", "fsync"):
        setattr(os, name, killed_at(getattr(os, name), int(os.environ["KILLED_AT"])))

@dataclass(frozen=True)
class Squares(Experiment):
    n: int = setting(4, "trials", selects=True)
    shift: int = setting(0, "what results depend on")
    def searches(self):
        yield one_round(Trial(f"x{i}", {"x": i}) for i in range(self.n))
    def objective(self, worker):
        return per_trial(self.evaluated)
    def evaluated(self, trial):
        with open(here / "calls", "a") as file:
            file.write(trial.key + "\\n")
        x = trial.params["x"] + self.shift
        return Evaluation(trial.key, {"loss": x**2}, {"all": np.arange(x + 1)})

run(Squares)
'''


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "squares.py").write_text(SCRIPT)
    return tmp_path / "squares.py"


def start(script: Path, *arguments: str, results: str = "r", **environment: str) -> subprocess.CompletedProcess[str]:
    where = ["--results", str(script.parent / results), "--workers", "1", "--gpu", "none"]
    around = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, str(script), *arguments, *where]
    return subprocess.run(command, env=around, capture_output=True, text=True, timeout=PATIENCE)


def evaluated(script: Path) -> list[str]:
    """What was evaluated since this was last asked."""
    calls = script.parent / "calls"
    lines = calls.read_text().split() if calls.exists() else []
    calls.write_text("")
    return lines


def test_a_program_uses_what_it_knows_and_says_how_much(script: Path) -> None:
    folder = script.parent / "r"
    assert start(script).returncode == 0 and len(evaluated(script)) == 4
    refused = start(script, "--n", "6")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "n = 4, not 6: " in refused.stderr and ", or --adapt to use its results in this one" in refused.stderr
    depends = start(script, "--n", "6", "--shift", "1", "--adapt")
    assert depends.returncode == 2 and "shift = 0, not 1: results depend on it, so none can be used" in depends.stderr
    assert not list(folder.glob("before-*")) and not evaluated(script)
    done = start(script, "--n", "6", "--adapt")
    assert (folder / "before-1" / "trials.csv").exists() and (folder / "before-1" / "report.html").exists()
    assert "4 of 4 results of before count for trials that ask" in done.stderr and evaluated(script) == ["x4", "x5"]
    assert start(script, "--n", "6").returncode == 0 and not evaluated(script)  # it goes on without the word
    start(script, "--n", "6", results="fresh")
    assert table_without_run(folder / "trials.csv") == table_without_run(script.parent / "fresh" / "trials.csv")
    history = read_study(folder)
    assert {key: len(result.arrays["all"]) for key, result in history.results.items()} == {
        f"x{n}": n + 1 for n in range(6)
    }
    assert len(read_study(folder / "before-1").results["x3"].arrays["all"]) == 4
    shutil.rmtree(folder / "before-1")
    gone = start(script, "--n", "6")
    assert gone.returncode == 2 and "before-1 holds no study, but" in gone.stderr and gone.stderr.count("\n") == 1


@pytest.mark.slow
def test_nothing_is_lost_wherever_the_start_of_a_changed_study_is_killed(script: Path) -> None:
    start(script)
    start(script, "--n", "7", results="fresh")
    shutil.copytree(script.parent / "r", script.parent / "old")
    evaluated(script)
    began = 0
    for number in range(1000):
        shutil.rmtree(script.parent / "r")
        shutil.copytree(script.parent / "old", script.parent / "r")
        ended = start(script, "--n", "7", "--adapt", KILLED_AT=str(number))
        whole = ended.returncode == 0
        assert whole or ended.returncode == -signal.SIGKILL
        held = len(read_study(script.parent / "r").runs)  # of before; the new study has none so far
        assert start(script, "--n", "7", "--adapt").returncode == 0
        assert sorted(set(evaluated(script))) == ["x4", "x5", "x6"]
        table, fresh = (table_without_run(script.parent / name / "trials.csv") for name in ("r", "fresh"))
        assert table == fresh
        results = read_study(script.parent / "r").results
        assert {key: len(result.arrays["all"]) for key, result in results.items()} == {f"x{n}": n + 1 for n in range(7)}
        began += not held
        if whole or (began and held):
            break
    assert number > 8 and began > 1  # it was killed before the new journal was there, and after


def test_a_strangers_journal_names_no_folder_elsewhere_and_no_odd_trial(tmp_path: Path) -> None:
    header = {"settings": {"experiment": "toy"}, "before": ["../before-1"]}
    with closing(Journal(tmp_path / "r", header)):
        pass
    with pytest.raises(UsageError, match="is not a journal header"):
        read_study(tmp_path / "r")
    objective = {"strategy": "grid", "minimize": "loss", "workers": 0, "adapt": True, "results": tmp_path / "s"}
    settings = {"experiment": "Tuning", "space": ["x: Int(low=1, high=2, log=False, step=1)"], "objectives": []}
    with closing(Journal(tmp_path / "s", {"settings": settings})) as journal:
        journal.append([(Trial("t/../../x", {"x": 1}), Result("t/../../x", {"loss": 1.0}))])
    with pytest.raises(UsageError, match="before-1 has trials that do not belong to a study of this kind"):
        search(lambda trial: 1.0, {"x": Int(1, 3)}, **objective)


@pytest.mark.slow
def test_nothing_is_lost_or_mixed_wherever_a_restart_of_a_joined_study_is_killed(script: Path) -> None:
    folder, old, then = (script.parent / name for name in ("r", "old", "then"))
    assert start(script, "--join", results="old").returncode == 0
    seen = set()
    for number in range(1000):
        for path in (folder, then):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(old, folder)
        start(script, "--shift", "1", "--restart", KILLED_AT=str(number))
        history = read_study(folder)
        shift, begun = history.header["settings"]["shift"], bool(history.runs)
        losses = {key: result.values["loss"] for key, result in history.results.items()}
        assert losses == {f"x{x}": (x + shift) ** 2 for x in range(0 if shift else 4)}
        assert start(script, "--shift", "1", "--join").returncode == (0 if shift and begun else 2)
        assert start(script, "--shift", str(shift)).returncode == 0  # the same study goes on
        (folder / history.header["aside"] if shift else folder).rename(then)
        results = read_study(then).results  # those of the study before, as it was
        assert {key: len(result.arrays["all"]) for key, result in results.items()} == {f"x{x}": x + 1 for x in range(4)}
        seen.add((shift, begun))
        if shift and begun:
            break
    assert seen == {(0, True), (1, False), (1, True)} and number > 8
