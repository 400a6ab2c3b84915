"""A script beside files whose names a package might take: the user's own are imported.

The folder of a script comes first on sys.path, so no installation could mend a name that both have.
"""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.xdist_group("wheel"), pytest.mark.slow]  # it is built once

# Modules at the top of the user's folder, each with VALUE = its name.
NAMES = (
    "common search cli doctor engine errors experiment export grid history jit journal kernel launch memory "
    "optimize options output plotting ranks report results scripts settings shared solver space status storage "
    "studies study svm task trial utils worker mnist_nn mnist_svm kernel_svm"
).split()
SCRIPT = """
import importlib, os, sys
from mpitune import Float, search
from mpitune.sklearn import GridSearchCV
from sklearn.datasets import load_iris
from sklearn.tree import DecisionTreeClassifier

OWN = sys.argv[1].split()
HERE = os.path.dirname(os.path.abspath(__file__))

def own():
    modules = [importlib.import_module(name) for name in OWN]
    return sum(os.path.dirname(os.path.abspath(one.__file__)).startswith(HERE) and one.VALUE == 7 for one in modules)

class Tree(DecisionTreeClassifier):
    def fit(self, X, y):
        assert own() == len(OWN)
        return super().fit(X, y)

def objective(trial):
    return {"loss": trial.params["x"], "own": own()}

study = search(objective, {"x": Float(0, 1)}, n_trials=2, minimize="loss", workers=1, results="study")
assert study.best.values["own"] == len(OWN) == own()
found = GridSearchCV(Tree(), {"max_depth": [1, 2]}, workers=1, error_score="raise").fit(*load_iris(return_X_y=True))
import mpitune
assert not mpitune.__file__.startswith(HERE)
print(found.best_params_)
"""


def run(command: list[str | Path], folder: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_a_script_beside_its_users_own_modules(installed: Path, tmp_path: Path) -> None:
    """Workers import too: the package, and what is the user's. So do the tools, in that folder."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("VALUE = 7\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    assert run([installed / "python", "script.py", " ".join(NAMES)], tmp_path).endswith("{'max_depth': 2}\n")
    for tool in ([installed / "python", "-m", "mpitune"], [installed / "mpitune"]):
        assert "2 finished, 0 of them failed" in run([*tool, "status", "study"], tmp_path)
