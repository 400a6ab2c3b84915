"""A study that continues after a function was changed: one line names it, and known results are kept."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpitune.errors import UsageError
from mpitune.storage.history import read_study
from mpitune.tools.status import described, status_of
from tests.helpers import journal_lines

Edit = Callable[..., list[str]]

SEARCH = """
from mpitune import Float, RunOptions, search

def scaled(x):
    return 2 * x

def objective(trial):
    return {"loss": scaled(trial.params["x"])}

study = search(objective, {"x": Float(0, 1)}, n_trials=4, minimize="loss", workers=0, results="r")
print(study.best.values["loss"])
"""
LAMBDAS = """
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.dummy import DummyClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer as Maps
from mpitune.sklearn import GridSearchCV

def scaled(x):
    return 2 * x

columns = make_column_transformer((Maps(), [0]))
typed = Maps(eval("lambda x: x.copy()"))
model = make_pipeline(Maps(lambda x: x - 5), Maps(lambda x: x * x), typed, columns, DummyClassifier())
scoring = {"a": lambda model, X, y: 1, "b": lambda model, X, y: 2}
grid = {"columntransformer__transformers": [[("f", Maps(scaled), [n])] for n in (0, 1)]}
search = GridSearchCV(model, grid, cv=2, scoring=scoring, refit=False, workers=0, results="r")
search.fit(*load_iris(return_X_y=True))
"""
KEPT = "changed since the known results (4) were made; these are kept. If they still count, say"


@pytest.fixture
def run(tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> Edit:
    """Runs a script, in a folder of its own, with what is written in place of what; what it says of changes."""

    monkeypatch.chdir(tmp_path)

    def run(script: str, **edits: str) -> list[str]:
        for before, after in edits.items():
            script = script.replace({"double": "2 * x", "n": "n_trials=4", "end": 'results="r"'}[before], after)
        (tmp_path / "script.py").write_text(script)
        runpy.run_path("script.py", run_name="__main__")
        return [line for line in capfd.readouterr().err.splitlines() if "changed" in line]

    return run


def test_a_search_names_the_function_until_its_user_says(run: Edit, tmp_path: Path, program: Any) -> None:
    changed = {"double": "3 * x"}
    assert run(SEARCH) == run(SEARCH, double="2 * x  # a comment") == []
    for _ in range(2):
        (line,) = run(SEARCH, **changed)
        assert line.endswith(
            f' scaled {KEPT} changed=["scaled"]; if not, begin anew with another results folder, or '
            "RunOptions(restart=True)"
        )
    assert len(run(SEARCH, end='results="r", changed="objective"', **changed)) == 1
    mixed = read_study(tmp_path / "r").mixed
    assert mixed == "results are of before a change of scaled"
    assert mixed in "\n".join(described(status_of(tmp_path / "r", read_study(tmp_path / "r"), running=False)))
    assert mixed in (tmp_path / "r" / "report.html").read_text()
    assert run(SEARCH, end='results="r", changed="scaled"', **changed) == run(SEARCH, **changed) == []
    assert not read_study(tmp_path / "r").mixed
    assert len(run(SEARCH)) == 1 and len(journal_lines(tmp_path / "r")) == 4  # the digest of the other is kept now
    assert run(SEARCH, end='results="r", options=RunOptions(restart=True)') == []
    assert "changed" not in program("-", cwd=tmp_path, input=SEARCH).stderr  # where no file has the source
    assert run(SEARCH) == []


def test_results_of_a_change_that_is_taken_back_do_not_count_silently(run: Edit, tmp_path: Path) -> None:
    adapted = 'results="r", adapt=True, enqueue=[{"x": 0.5}]'
    assert run(SEARCH) == [] != run(SEARCH, double="3 * x") and run(SEARCH) == []  # it has made none
    for n in ("n_trials=6", "n_trials=6", "n_trials=7"):
        assert len(run(SEARCH, double="3 * x", n=n)) == len(run(SEARCH, n=n)) == 1
    with pytest.raises(UsageError, match="^scaled changed since the known results were made: if"):
        run(SEARCH, end=adapted)
    assert run(SEARCH, end=adapted + ', changed="scaled"') == run(SEARCH, end=adapted) == []


def test_lambdas_of_an_estimator_are_told_by_their_places(run: Edit) -> None:
    assert run(LAMBDAS) == run(LAMBDAS.replace("x * x", "x * x  # one\n")) == []
    for before, after, told in (
        ("Maps(lambda x: x - 5), Maps(lambda x: x * x)", "Maps(lambda x: x * x), Maps(lambda x: x - 5)", "lambdas"),
        ("x.copy", "x.view", "lambdas"),
        ("x - 5", "x - 6", "FunctionTransformer.func, lambdas"),
    ):
        (line,) = run(LAMBDAS.replace(before, after))
        names = ", ".join(f'"{name}"' for name in told.split(", "))
        assert f" {told} changed" in line and f"changed=[{names}]" in line
    assert run(LAMBDAS.replace(before, after).replace('"r"', f'"r", changed=[{names}]')) == []


def test_a_command_and_its_program(run: Edit, tmp_path: Path) -> None:
    def named(command: str, content: str) -> list[str]:
        (tmp_path / "train.py").write_text(content)
        search = f'search("{command}", {{"x": Float(0, 1)}}, n_trials=2, minimize="loss", workers=0, results="r")'
        said = run(f"from mpitune import Float, search\n{search}\n")
        return [line.partition(" changed")[0].split()[-1] for line in said]

    command, content = "python train.py {x}", "import sys\nprint('{\"loss\": %s}' % sys.argv[1])\n"
    assert named(command, content) == named(command, f"# a comment\n{content}") == []
    assert named(command, content.replace("%s}", "1%s}")) == ["train.py"]
    assert named(command.replace(" {x}", " {x} -v"), content) == ["command"]


def test_a_name_that_no_function_has_is_refused_and_names_that_are_none_too(run: Edit, tmp_path: Path) -> None:
    assert run(SEARCH) == []
    before = (tmp_path / "r" / "journal.jsonl").read_bytes()
    with pytest.raises(UsageError) as error:
        run(SEARCH, end='results="r", changed=["scaled", "scale"]')
    assert str(error.value) == 'changed=["scale"]: the study calls no such function, but objective, scaled'
    with pytest.raises(UsageError, match=r"^changed=\[<function scaled at 0x.*give the names of functions"):
        run(SEARCH, end="changed=[scaled]")
    assert (tmp_path / "r" / "journal.jsonl").read_bytes() == before
