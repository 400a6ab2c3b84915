"""Tables of a search, of Optuna and of scikit-learn go on as a search."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from mpitune import Choice, Float, Int, RunOptions, When, search
from mpitune.errors import Exit
from mpitune.storage.history import read_study
from mpitune.tools import export
from mpitune.tools.import_ import main
from tests.helpers import ROOT

optuna = pytest.importorskip("optuna")
optuna.logging.set_verbosity(optuna.logging.ERROR)
SPACE = {"x": Float(0, 4), "n": Int(1, 9, log=True), "kind": Choice("a", "b"), "y": When(Float(0, 1), kind="a")}


def loss(x: float, n: int, kind: Any, y: float = 0.5) -> float:
    return (x - 1) ** 2 + n * y + (kind == "b")


def by_optuna(trial: Any) -> float:
    kind = trial.suggest_categorical("kind", ["a", "b"])
    more = {"y": trial.suggest_float("y", 0, 1)} if kind == "a" else {}
    if trial.number == 3:
        raise optuna.TrialPruned
    return loss(trial.suggest_float("x", 0, 4), trial.suggest_int("n", 1, 9, log=True), kind, **more)


class Counted:
    """An objective that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, trial: Any) -> dict[str, float]:
        self.calls += 1
        return {"loss": loss(**trial.params), "more": 1.0}


def go_on(folder: Path, n_trials: int, space: Any = None, **how: Any) -> tuple[Any, int]:
    """The study that goes on there, and how many trials it has evaluated."""
    objective = Counted()
    usual: dict[str, Any] = dict(strategy="tpe", minimize="loss", workers=0, round_size=2, adapt=True)
    options = RunOptions(quiet=True)
    study = search(objective, space or SPACE, n_trials=n_trials, results=folder, options=options, **{**usual, **how})
    return study, objective.calls


def test_a_study_begun_with_optuna_goes_on_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its table has other names for the columns, which pandas changes."""
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
    study.optimize(by_optuna, n_trials=12)
    (renamed,) = re.findall(r"^table = (.*)$", (ROOT / "docs" / "search.md").read_text(), re.MULTILINE)
    table = eval(renamed, {"study": study})
    table.to_csv(tmp_path / "optuna.csv")
    into = tmp_path / "r"
    assert main([str(tmp_path / "optuna.csv"), "--into", str(into)]) == Exit.DONE
    assert "11 trials, without 1 that have no value" in capsys.readouterr().out
    shutil.copytree(into, tmp_path / "again")
    found, calls = go_on(into, 16)
    assert calls == 5 and len(found) == 16
    complete = [trial for trial in study.trials if trial.value is not None]
    assert [dict(t.params) for t in found.trials[:11]] == [
        {n: t.params[n] for n in SPACE if n in t.params} for t in complete
    ]
    assert [t.values["loss"] for t in found.trials[:11]] == [t.value for t in complete]
    assert go_on(into, 16, adapt=False)[1] == 0
    go_on(tmp_path / "again", 16, workers=2)
    assert (into / "trials.csv").read_bytes() == (tmp_path / "again" / "trials.csv").read_bytes()


def test_a_table_of_a_search_and_one_written_by_hand(tmp_path: Path) -> None:
    first, _ = go_on(tmp_path / "first", 10, strategy="random")
    assert main([str(tmp_path / "first" / "trials.csv"), "--into", str(tmp_path / "r")]) == Exit.DONE
    study, calls = go_on(tmp_path / "r", 10, strategy="random")
    assert calls == 0 and [t.params for t in study.trials] == [t.params for t in first.trials]
    (tmp_path / "hand.csv").write_text(
        "param_x,param_n,param_kind,value_loss,state\n1,2,a,3.5,complete\n2,3,,inf,failed\n"
    )
    assert main([str(tmp_path / "hand.csv"), "--into", str(tmp_path / "h")]) == Exit.DONE
    assert len(read_study(tmp_path / "h").results) == 1, "a failed trial has no value"
    space = {"x": Float(0, 4, step=1), "n": Int(2, 3), "kind": Choice("a", "b")}
    study, calls = go_on(tmp_path / "h", 99, space, strategy="grid")
    known = next(trial for trial in study.trials if trial.params == {"x": 1.0, "n": 2, "kind": "a"})
    assert calls == 5 * 2 * 2 - 1 and known.values == {"loss": 3.5}


def test_a_text_of_a_table_that_looks_like_a_number_is_a_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("64_32", "007", "1e5"), ("6432", "7", "100000.0"), ("128_64", "7", "1E+05")]
    lines = ["param_layers,param_code,param_c,value_loss", *(f"{','.join(row)},{n}" for n, row in enumerate(rows))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    assert main([str(tmp_path / "t.csv"), "--into", str(tmp_path / "r")]) == Exit.DONE
    assert "uses their loss" in capsys.readouterr().out
    space = {"layers": Choice("64_32", 6432, "128_64"), "code": Choice("007", 7), "c": Float(1e5, 2e5, step=1e5)}
    how: dict[str, Any] = dict(strategy="grid", minimize="loss", workers=0, options=RunOptions(quiet=True))
    study = search(lambda trial: {"loss": 9.0}, space, results=tmp_path / "r", adapt=True, **how)
    known = {trial.values["loss"]: list(trial.params.values()) for trial in study.trials if trial.values["loss"] < 9}
    assert known == {0: ["64_32", "007", 1e5], 1: [6432, 7, 1e5], 2: ["128_64", 7, 1e5]}  # numbers, where asked for


def test_cv_results_of_scikit_learn(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    from sklearn.datasets import load_iris
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    grid = {"C": [0.5, 1, 2], "kernel": ["rbf", "linear"], "shrinking": [True, False]}
    fitted = GridSearchCV(SVC(), grid, cv=3).fit(*load_iris(return_X_y=True))
    table = pandas.DataFrame(fitted.cv_results_)
    table.to_csv(tmp_path / "cv.csv")
    space = {"C": Choice(0.5, 1, 2, 4), "kernel": Choice("rbf", "linear"), "shrinking": [True, False]}
    asked: list[float] = []
    assert main([str(tmp_path / "cv.csv"), "--into", str(tmp_path / "r")]) == Exit.DONE

    def score(trial: Any) -> dict[str, float]:
        asked.append(trial.params["C"])
        return {"score": 0.0}

    how: dict[str, Any] = dict(strategy="grid", maximize="score", workers=0, options=RunOptions(quiet=True))
    study = search(score, space, results=tmp_path / "r", adapt=True, **how)
    assert asked == [4] * 4
    assert [t.values["score"] for t in study.trials][:12] == pytest.approx(table["mean_test_score"].tolist(), abs=1e-9)


def test_what_cannot_be_imported_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "none.csv").write_text("x,loss\n1,2\n")
    (tmp_path / "text.csv").write_text("param_x,value_loss\n1,good\n")
    (tmp_path / "empty.csv").write_text("param_x,value_loss\n1,\n")
    (tmp_path / "large.csv").write_text(f"param_x,value_loss\n{10**400},1\n")
    (tmp_path / "wide.csv").write_text("param_x,value_loss\n1,2,3\n")
    (tmp_path / "bytes.csv").write_bytes(b"param_x,value_loss\n\xff,1\n")
    (tmp_path / "any").write_text("hello")
    go_on(tmp_path / "known", 2, strategy="random")
    journal = (tmp_path / "known" / "journal.jsonl").read_bytes()
    shutil.copy(tmp_path / "known" / "trials.csv", tmp_path / "fine.csv")
    said = {
        "none.csv": "has no columns param_... and value_...",
        "text.csv": "has the value 'good': give numbers",
        "empty.csv": "has no trial with a value: nothing was written",
        "large.csv": "parameter x of trial t000000 is",
        "wide.csv": "is no table",
        "bytes.csv": "is no table",
        "any": "has no columns param_... and value_...",
        "absent.csv": "cannot be read (No such file or directory)",
    }
    for name, why in said.items():
        assert main([str(tmp_path / name), "--into", str(tmp_path / "into")]) == Exit.USAGE
        error = capsys.readouterr().err
        assert why in error and error.count("\n") == 1, error
        assert not (tmp_path / "into").exists()
    assert main([str(tmp_path / "fine.csv")]) == Exit.USAGE and "--into is missing" in capsys.readouterr().err
    assert main([str(tmp_path / "fine.csv"), "--into", str(tmp_path / "known")]) == Exit.USAGE
    assert "holds a study: give a new folder" in capsys.readouterr().err
    assert (tmp_path / "known" / "journal.jsonl").read_bytes() == journal and not (tmp_path / "into").exists()
    assert json.dumps(read_study(tmp_path / "known").header)


HOSTILE = {  # what a stranger's file is, by its name
    "pipe.csv": os.mkfifo,
    "link.csv": lambda path: path.symlink_to("/etc/passwd"),
    "hole.csv": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
    "digits.csv": lambda path: path.write_text(f"param_x,value_loss\n1,{'9' * 309}\n"),
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_of_a_stranger_is_refused_in_one_line(name: str, tmp_path: Path, capsys: Any) -> None:
    HOSTILE[name](tmp_path / name)
    there = sorted(tmp_path.iterdir())
    assert main([str(tmp_path / name), "--into", str(tmp_path / "into")]) == Exit.USAGE
    out, err = capsys.readouterr()
    assert err.count("\n") == 1 and not out and sorted(tmp_path.iterdir()) == there


def test_odd_times_and_values_of_steps_leave_a_journal_that_can_be_read(tmp_path: Path) -> None:
    rows = ["param_x,value_loss,value_loss@3,seconds", "1,2.0,9,1e300", "2,inf,,soon", "3,nan,,", "4,1,,"]
    (tmp_path / "odd.csv").write_text("\n".join(rows))
    assert main([str(tmp_path / "odd.csv"), "--into", str(tmp_path / "r")]) == Exit.DONE
    results = read_study(tmp_path / "r").results.values()
    assert [(result.values, result.seconds) for result in results] == [
        ({"loss": 2.0}, 0.0),
        ({"loss": float("inf")}, 0.0),
        ({"loss": 1.0}, 0.0),
    ]
    assert export.main([str(tmp_path / "r"), "--to", "csv"]) == Exit.DONE
