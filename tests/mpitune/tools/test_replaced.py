"""Somebody's scikit-learn scripts, unchanged: the same is printed, once, by python and under mpirun."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from mpitune.errors import UsageError
from mpitune.tools import script
from tests.helpers import on_one_core

SCRIPT = """
import sys
import numpy as np
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC, NuSVC

def halved(x):
    return x / 2

def main(out):
    X, y = load_iris(return_X_y=True)
    model = make_pipeline(FunctionTransformer(halved), StandardScaler(), SVC(tol=1e-5))
    search = GridSearchCV(model, {"svc__C": [0.1, 1, 10], "svc__gamma": [0.01, 0.1, "scale"]}, cv=3).fit(X, y)
    print(search.best_params_, search.cv_results_["mean_test_score"].round(6).tolist())
    forest = RandomForestClassifier(n_estimators=5, random_state=0)
    other = RandomizedSearchCV(forest, {"max_depth": [1, 2, 3]}, n_iter=2, random_state=0, cv=2).fit(X, y)
    print(other.best_params_, round(other.best_score_, 6))
    print(cross_val_score(SVC(tol=1e-5), X, y, cv=3).round(6).tolist(), NuSVC().fit(X, y).score(X, y))
    open(out, "a").write("written\\n")
    homes = [thing.__module__.partition(".")[0] for thing in (GridSearchCV, RandomizedSearchCV, SVC)]
    print("of", *homes, file=sys.stderr)

if __name__ == "__main__":
    main(sys.argv[1])
    sys.exit(4)
"""


@pytest.mark.slow
def test_a_script_prints_the_same_once(
    program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain python is this process, which has scikit-learn already."""
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setattr(sys, "argv", ["script.py", str(tmp_path / "plain")])
    with pytest.raises(SystemExit, match="4"):
        runpy.run_path(str(tmp_path / "script.py"), run_name="__main__")
    plain = capsys.readouterr().out
    options = {"ranks": 2, "preexec_fn": on_one_core}
    done = program("-m", "mpitune", "--sklearn", "script.py", "out", cwd=tmp_path, status=4, **options)
    assert done.stdout == plain and len(plain.splitlines()) == 3
    assert (tmp_path / "out").read_text() == "written\n"
    assert "of mpitune mpitune mpitune" in done.stderr.splitlines()


INSIDE = """
import sys
from joblib import Parallel, delayed
from .own import twice

class Number:
    def __init__(self, n):
        self.n = n

print(*sorted(name for name in globals() if name[0] != "_"))
print(*sys.argv, __name__, __package__, __spec__.name, __file__, sys.path[0])
print([number.n for number in Parallel(n_jobs=2)(delayed(lambda n: Number(twice(n)))(n) for n in range(3))])
sys.exit(4)
"""


@pytest.mark.slow
def test_a_module_runs_as_by_python(program: Any, tmp_path: Path) -> None:
    """A package with `__main__`, a module in it, and the file of a command, each by two ranks, which print once."""
    inside = tmp_path / "tool"
    inside.mkdir()
    for name, text in (("__init__", ""), ("__main__", INSIDE), ("own", "def twice(n): return 2 * n"), ("c", INSIDE)):
        (inside / f"{name}.py").write_text(text)
    for words in (["-m", "tool", "--algo", "a", "-m", "b"], ["-m", "tool.c", "status"]):
        plain = program(*words, cwd=tmp_path, status=4)
        ours = program("-m", "mpitune", *words, ranks=2, cwd=tmp_path, status=4)
        assert ours.stdout == plain.stdout and plain.stdout.endswith("[0, 2, 4]\n")
    (tmp_path / "command").write_text("#!/usr/bin/env python\nimport sys, runpy\nprint(*sys.argv[1:])")
    assert program("-m", "mpitune", tmp_path / "command", "run", "--x", cwd=tmp_path).stdout == "run --x\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tool", "No module named tool.__main__; 'tool' is a package and cannot be directly executed"),
        ("tool.c.d", "Error while finding module specification for 'tool.c.d'"),
        ("tool/c.py", "-m tool/c.py is no name of a module: give one as for python -m, without .py"),
        ("tol", "there is no module tol: install it, or start where it is"),
    ],
)
def test_a_module_that_cannot_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str) -> None:
    (tmp_path / "tool").mkdir()
    for file in ("__init__", "c"):
        (tmp_path / "tool" / f"{file}.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [name])
    for there in ("__main__", "tool", "tool.c"):
        monkeypatch.delitem(sys.modules, there, raising=False)
    with pytest.raises((UsageError, SystemExit)) as error:
        script._module(name)()
    assert said in str(error.value) and "\n" not in str(error.value)
