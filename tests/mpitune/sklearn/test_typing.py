"""Editors and type checkers know the arguments of the searches."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from mpitune import sklearn
from mpitune.sklearn.search.signature import Arguments
from tests.helpers import ROOT

SCRIPT = """
from sklearn.svm import SVC
from mpitune.sklearn import GridSearchCV
search = GridSearchCV(SVC(), {"C": [1, 10]}, cv=5, n_jobs=2, workers=2, results="r", share=True)
reveal_type(search.fit([[0.0]], [0]))
GridSearchCV(SVC(), {"C": [1, 10]}, wrokers=2)
GridSearchCV(SVC(), {"C": [1, 10]}, workers="two")
"""


def test_the_typed_arguments_are_those_of_the_constructors() -> None:
    kinds: list[Any] = [getattr(sklearn, name) for name in sklearn.__all__ if name.endswith("SearchCV")]
    keywords = {keyword for kind in kinds for keyword in inspect.signature(kind).parameters}
    assert get_type_hints(Arguments).keys() == keywords - {"estimator", "param_grid", "param_distributions"}


@pytest.mark.slow
def test_mypy_finds_mistakes_in_arguments(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--ignore-missing-imports", f"--cache-dir={tmp_path}/cache", "script.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"MYPYPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("script.py") and ' note: "' not in line]
    assert len(lines) == 3, done.stdout + done.stderr
    assert "mpitune.sklearn.search.searches.GridSearchCV" in lines[0]
    assert 'Unexpected keyword argument "wrokers"' in lines[1] and 'Argument "workers"' in lines[2]
