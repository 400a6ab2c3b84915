"""A program's study of changed settings uses what the one before knows."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitune import Experiment, Int, RunOptions, Trial, one_round, per_trial, run_study, search, setting
from mpitune.errors import UsageError
from mpitune.storage.history import read_study
from mpitune.storage.journal import Journal
from mpitune.trial import Evaluation, Result
from tests.helpers import table_without_run

calls: list[str] = []


@dataclass(frozen=True)
class Squares(Experiment):
    n: int = setting(4, "trials", selects=True)
    shift: int = setting(0, "what results depend on")

    def searches(self) -> Any:
        yield one_round(Trial(f"x{i}", {"x": i}) for i in range(self.n))

    def objective(self, worker: Any) -> Any:
        return per_trial(self.evaluated)

    def evaluated(self, trial: Trial) -> Evaluation:
        calls.append(trial.key)
        x = int(trial.params["x"]) + self.shift
        return Evaluation(trial.key, {"loss": x**2}, {"all": np.arange(x + 1)})


def evaluated(study: Squares, options: RunOptions, **how: Any) -> list[str]:
    calls.clear()
    run_study(study, replace(options, **how))
    return list(calls)


def test_a_program_uses_what_it_knows_and_says_how_much(tmp_path: Path, capfd: Any) -> None:
    options, folder = RunOptions(workers=0, results=tmp_path / "r"), tmp_path / "r"
    assert len(evaluated(Squares(), options)) == 4
    with pytest.raises(UsageError, match=r"n = 4, not 6: .*, or adapt=True to use its results in this"):
        run_study(Squares(6), options)
    with pytest.raises(UsageError, match="shift = 0, not 1: results depend on it, so none can be used"):
        run_study(Squares(6, shift=1), replace(options, adapt=True))
    assert not list(folder.glob("before-*"))
    capfd.readouterr()
    assert evaluated(Squares(6), options, adapt=True) == ["x4", "x5"]
    assert "4 of 4 results of before count for trials that ask" in capfd.readouterr().err
    assert (folder / "before-1" / "trials.csv").exists() and (folder / "before-1" / "report.html").exists()
    assert evaluated(Squares(6), options) == []  # it goes on without the word
    evaluated(Squares(6), options, results=tmp_path / "fresh")
    assert table_without_run(folder / "trials.csv") == table_without_run(tmp_path / "fresh" / "trials.csv")
    results = read_study(folder).results
    assert {key: len(result.arrays["all"]) for key, result in results.items()} == {f"x{n}": n + 1 for n in range(6)}
    assert evaluated(Squares(3), options, adapt=True) == evaluated(Squares(6), options, adapt=True) == []
    shutil.rmtree(folder / "before-1")
    with pytest.raises(UsageError, match="before-1 holds no study, but"):
        run_study(Squares(6), options)


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
