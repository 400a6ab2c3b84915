"""Results of Optuna, of tables and of scikit-learn go on as a search, and back."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from mpitune import Choice, Float, Int, RunOptions, When, search
from mpitune.errors import Exit
from mpitune.storage.history import NAME, read_study
from mpitune.tools import export
from mpitune.tools.import_ import main

optuna = pytest.importorskip("optuna")
optuna.logging.set_verbosity(optuna.logging.ERROR)
SPACE = {"x": Float(0, 4), "n": Int(1, 9, log=True), "kind": Choice("a", None), "y": When(Float(0, 1), kind="a")}


def loss(x: float, n: int, kind: Any, y: float = 0.5) -> float:
    return (x - 1) ** 2 + n * y + (kind is None)


def by_optuna(trial: Any) -> float:
    kind = trial.suggest_categorical("kind", ["a", None])
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


@pytest.mark.parametrize("kind", ["database", "journal"])
def test_a_study_begun_with_optuna_goes_on_here_and_back(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file, into = tmp_path / "study", tmp_path / "r"
    if kind == "journal":
        backend = optuna.storages.journal.JournalFileBackend(str(file))
        storage: Any = optuna.storages.JournalStorage(backend)
    else:
        storage = f"sqlite:///{file}"
    study = optuna.create_study(storage=storage, study_name="mine", sampler=optuna.samplers.TPESampler(seed=1))
    study.optimize(by_optuna, n_trials=12)
    content = file.read_bytes()
    assert main([str(file), "--into", str(into), "--names", "loss"]) == Exit.DONE
    assert "11 trials, without 1 that have no value" in capsys.readouterr().out and file.read_bytes() == content
    if kind == "database":
        assert main([f"sqlite:///{file}", "--into", str(tmp_path / "same"), "--names", "loss"]) == Exit.DONE
        assert read_study(tmp_path / "same").results == read_study(into).results
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
    # And back, and here once more: nothing changes on the way.
    assert export.main([str(into), "--to", "optuna", "--into", str(tmp_path / "back")]) == Exit.DONE
    back = optuna.load_study(study_name=None, storage=optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(tmp_path / "back"))
    ))  # fmt: skip
    assert [t.value for t in back.trials] == [t.values["loss"] for t in found.trials]
    assert main([str(tmp_path / "back"), "--into", str(tmp_path / "third")]) == Exit.DONE
    third, calls = go_on(tmp_path / "third", 16)
    assert calls == 0 and [t.params for t in third.trials] == [t.params for t in found.trials]
    assert [t.values["loss"] for t in third.trials] == [t.values["loss"] for t in found.trials]


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
    table.to_json(tmp_path / "columns.json")
    table.to_json(tmp_path / "rows.json", orient="records")
    space = {"C": Choice(0.5, 1, 2, 4), "kernel": Choice("rbf", "linear"), "shrinking": [True, False]}
    for name in ("cv.csv", "columns.json", "rows.json"):
        folder, asked = tmp_path / f"of {name}", list[float]()
        assert main([str(tmp_path / name), "--into", str(folder)]) == Exit.DONE

        def score(trial: Any, asked: list[float] = asked) -> dict[str, float]:
            asked.append(trial.params["C"])
            return {"score": 0.0}

        how: dict[str, Any] = dict(strategy="grid", maximize="score", workers=0, options=RunOptions(quiet=True))
        study = search(score, space, results=folder, adapt=True, **how)
        assert asked == [4] * 4
        assert [t.values["score"] for t in study.trials][:12] == pytest.approx(
            table["mean_test_score"].tolist(), abs=1e-9
        )


def test_folders_are_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    go_on(tmp_path / "a", 6, strategy="random")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    go_on(tmp_path / "b", 9, strategy="random")
    assert main([str(tmp_path / "a"), str(tmp_path / "b"), "--into", str(tmp_path / "r")]) == Exit.DONE
    assert f"{tmp_path / 'r'}: 9 trials; the same search goes on there" in capsys.readouterr().out
    assert go_on(tmp_path / "r", 9, strategy="random", adapt=False)[1] == 0
    go_on(tmp_path / "r", 12)  # now one that has begun with results of another
    assert main([str(tmp_path / "r"), "--into", str(tmp_path / "moved")]) == Exit.DONE
    assert go_on(tmp_path / "moved", 12, adapt=False)[1] == 0 and go_on(tmp_path / "moved", 14, adapt=False)[1] == 2


def test_what_cannot_be_imported_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cv.pkl").write_bytes(pickle.dumps({"param_x": [1]}))
    (tmp_path / "none.csv").write_text("x,loss\n1,2\n")
    (tmp_path / "text.csv").write_text("param_x,value_loss\n1,good\n")
    (tmp_path / "empty.csv").write_text("param_x,value_loss\n1,\n")
    (tmp_path / "torn.json").write_text('{"param_x": [1')
    (tmp_path / "other.json").write_text("[1, 2]")
    (tmp_path / "large.json").write_text(f'[{{"param_x": {10**400}, "value_loss": 1}}]')
    (tmp_path / "wide.csv").write_text("param_x,value_loss\n1,2,3\n")
    (tmp_path / "bytes.csv").write_bytes(b"param_x,value_loss\n\xff,1\n")
    (tmp_path / "any").write_text("hello")
    two = f"sqlite:///{tmp_path / 'two'}"
    for name in ("one", "other"):
        optuna.create_study(storage=two, study_name=name)
    go_on(tmp_path / "known", 2, strategy="random")
    journal = (tmp_path / "known" / "journal.jsonl").read_bytes()
    shutil.copy(tmp_path / "known" / "trials.csv", tmp_path / "fine.csv")
    said = {
        "cv.pkl": "is a pickle, which may run any code",
        "none.csv": "has no columns param_... and value_...",
        "text.csv": "has the value 'good': give numbers",
        "empty.csv": "has no trial with a value: nothing was written",
        "torn.json": "is no table",
        "other.json": "is no table",
        "large.json": "parameter x of trial t000000 is",
        "wide.csv": "is no table",
        "bytes.csv": "is no table",
        "any": "has no study of Optuna",
        "absent.csv": "cannot be read (No such file or directory)",
        "two": "has the studies one, other: say which with --study NAME",
    }
    for name, why in said.items():
        assert main([str(tmp_path / name), "--into", str(tmp_path / "into")]) == Exit.USAGE
        error = capsys.readouterr().err
        assert why in error and error.count("\n") == 1, error
        assert not (tmp_path / "into").exists()
    assert main(["mysql://host/base", "--into", str(tmp_path / "into")]) == Exit.USAGE
    assert main([str(tmp_path / "fine.csv")]) == Exit.USAGE and "--into is missing" in capsys.readouterr().err
    assert main([str(tmp_path / "fine.csv"), str(tmp_path / "known"), "--into", str(tmp_path / "into")]) == Exit.USAGE
    assert main([str(tmp_path / "fine.csv"), "--into", str(tmp_path / "known")]) == Exit.USAGE
    assert "holds a study: give a new folder" in capsys.readouterr().err
    assert (tmp_path / "known" / "journal.jsonl").read_bytes() == journal and not (tmp_path / "into").exists()
    assert json.dumps(read_study(tmp_path / "known").header)


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x study_id, 's' study_name FROM c"
HOSTILE = {  # what a stranger's file is, by its name
    "pipe.csv": os.mkfifo,
    "pipe": os.mkfifo,
    "link.csv": lambda path: path.symlink_to("/etc/passwd"),
    "hole.csv": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
    "hole": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
    "digits.csv": lambda path: path.write_text(f"param_x,value_loss\n1,{'9' * 309}\n"),
    "digits.json": lambda path: path.write_text(f'[{{"param_x": 1, "value_loss": {"9" * 309}}}]'),
    "deep.json": lambda path: path.write_text("[" * 200_000),
    "pipe.db": lambda path: (stored(path), os.mkfifo(f"{path}-wal")),
    "link.db": lambda path: (stored(path), os.symlink("/etc/passwd", f"{path}-wal")),
    "endless.db": lambda path: stored(path, "ALTER TABLE studies RENAME TO s", f"CREATE VIEW studies AS {ENDLESS}"),
    "trigger.db": lambda path: stored(path, "CREATE TRIGGER t AFTER INSERT ON studies BEGIN SELECT 1; END"),
    "computed.db": lambda path: stored(path, "ALTER TABLE trials ADD COLUMN big AS (hex(zeroblob(9)))"),
    "state.db": lambda path: stored(path, "UPDATE trials SET state = 'ODD'"),
    "value.db": lambda path: stored(path, "UPDATE trial_values SET value = 'odd'"),
    "values.db": lambda path: stored(path, "DELETE FROM trial_values"),
    "goals.db": lambda path: stored(path, "INSERT INTO study_directions VALUES (9, 'MINIMIZE', 1, 5)"),
    "date.db": lambda path: stored(path, "UPDATE trials SET datetime_complete = '0001-01-01 00:00:00.0'"),
    "range.db": lambda path: stored(path, "UPDATE trial_params SET distribution_json = '[1]'"),
    "name.db": lambda path: stored(path, "UPDATE trial_params SET param_name = x'ff' || param_name"),
}  # fmt: skip


@cache
def a_database() -> bytes:
    with TemporaryDirectory() as folder:
        study = optuna.create_study(storage=f"sqlite:///{folder}/db")
        study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
        return Path(folder, "db").read_bytes()


def stored(path: Path, *changes: str) -> None:
    """A study of Optuna in a database, then changed."""
    path.write_bytes(a_database())
    with closing(sqlite3.connect(path)) as connection:
        for change in changes:
            connection.execute(change)
        connection.commit()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_of_a_stranger_is_refused_in_one_line(name: str, tmp_path: Path, capsys: Any) -> None:
    HOSTILE[name](tmp_path / name)
    there = sorted(tmp_path.iterdir())
    assert main([str(tmp_path / name), "--into", str(tmp_path / "into")]) == Exit.USAGE
    out, err = capsys.readouterr()
    assert err.count("\n") == 1 and not out and sorted(tmp_path.iterdir()) == there


@pytest.mark.parametrize("what", ["link", "pipe", "missing", "damaged", "deep", "sound"])
def test_an_earlier_study_is_copied_whole_or_nothing_is_written(what: str, tmp_path: Path, capsys: Any) -> None:
    """Of its files their content alone: nothing through a link, no hole filled, no right to act as their owner."""
    source, into = tmp_path / "r", tmp_path / "into"
    go_on(source, 3, strategy="random")
    go_on(source, 4, strategy="random", seed=1)
    before = source / "before-1"
    with open(before / "hole", "wb") as file:
        file.seek(1 << 40)
        file.write(b"end")
    (before / "hole").chmod(0o6777)
    if what in ("link", "missing"):
        before.rename(tmp_path / "private")
    if what == "link":
        before.symlink_to(tmp_path / "private")
    elif what == "pipe":
        os.mkfifo(before / "pipe")
    elif what == "damaged":
        (before / NAME).write_text("mine")
    elif what == "deep":
        below = os.open(before, os.O_RDONLY)
        for _ in range(600):
            os.mkdir("d", dir_fd=below)
            below, above = os.open("d", os.O_RDONLY, dir_fd=below), below
            os.close(above)
        os.close(below)
    status = main([str(source), "--into", str(into)])
    if what != "sound":
        assert status == Exit.USAGE and capsys.readouterr().err.count("\n") == 1
        assert {path.name for path in tmp_path.iterdir()} <= {"r", "private"}
        return
    copy = os.stat(into / "before-1" / "hole")
    assert status == Exit.DONE and copy.st_mode & 0o6000 == 0 and copy.st_blocks < 100
    assert go_on(into, 4, strategy="random", seed=1)[1] == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    assert main([str(source), "--into", str(tmp_path / "mine")]) == Exit.USAGE
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]


def test_odd_times_and_values_of_steps_leave_a_journal_that_can_be_read(tmp_path: Path) -> None:
    rows = [
        {"param_x": 1, "value_loss": 2.0, "value_loss@3": 9, "seconds": 1e300},
        {"param_x": 2, "value_loss": float("inf"), "seconds": "soon"},
        {"param_x": 3, "value_loss": float("nan")},
    ]
    (tmp_path / "odd.json").write_text(json.dumps(rows))
    assert main([str(tmp_path / "odd.json"), "--into", str(tmp_path / "r")]) == Exit.DONE
    results = read_study(tmp_path / "r").results.values()
    assert [(result.values, result.seconds) for result in results] == [
        ({"loss": 2.0}, 0.0),
        ({"loss": float("inf")}, 0.0),
    ]
    assert export.main([str(tmp_path / "r"), "--to", "csv"]) == Exit.DONE
