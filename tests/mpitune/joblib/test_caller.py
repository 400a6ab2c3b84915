"""What a script has of its own is as it was after an import, a search and a fit: variables, hooks, logs, figures."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from mpitune.errors import StorageError, UsageError
from mpitune.figures.plotting import save, styled, subplots
from mpitune.scripts import errors_in_one_line
from tests.helpers import ROOT

START = """
import logging, os, sys

class Mine(logging.Handler):
    heard = []
    def emit(self, record):
        self.heard.append(record.getMessage())

logging.getLogger("mpitune").addHandler(Mine())

def state():
    loggers = [logging.getLogger(name) for name in (None, "mpitune")]
    of_loggers = [(one.handlers[:], one.level, one.propagate) for one in loggers]
    return {
        **os.environ, "hook": sys.excepthook, "out": sys.stdout, "err": sys.stderr, "path": str(sys.path),
        "loggers": str(of_loggers),
    }

def check():
    assert not (changed := dict(before.items() ^ state().items())), changed

before = state()
"""
END = """
check()
import matplotlib
assert matplotlib.rcParams["lines.linewidth"] == 7.0, matplotlib.matplotlib_fname()
"""
SEARCH = """
from mpitune import Float, search
check()

def objective(trial):
    names = "NUMBA_CACHE_DIR TRITON_CACHE_DIR CUPY_CACHE_DIR TORCHINDUCTOR_CACHE_DIR".split()
    import matplotlib
    assert matplotlib.rcParams["lines.linewidth"] == 7.0
    return {"loss": trial.params["x"], "safe": sum(os.environ.get(name, "").startswith(sys.argv[1]) for name in names)}

study = search(objective, {"x": Float(0, 1)}, n_trials=2, minimize="loss", workers=int(sys.argv[2]))
print(len(study.trials), study.best.values["safe"])
assert any("2 trials" in line for line in Mine.heard), Mine.heard
"""
FIT = """
from mpitune.sklearn import GridSearchCV
check()
from sklearn.datasets import load_iris
from sklearn.tree import DecisionTreeClassifier

GridSearchCV(DecisionTreeClassifier(), {"max_depth": [1, 2]}, workers=int(sys.argv[2])).fit(*load_iris(return_X_y=True))
print("fitted")
"""


def script(text: str, folder: Path, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """What a script does whose user has a matplotlibrc."""
    (folder / "config" / "matplotlib").mkdir(parents=True)
    (folder / "config" / "matplotlib" / "matplotlibrc").write_text("lines.linewidth: 7\n")
    (folder / "script.py").write_text(text)
    environ = {name: value for name, value in os.environ.items() if not name.endswith(("_CACHE_DIR", "MPLCONFIGDIR"))}
    environ |= {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(folder / "config"), "XDG_CACHE_HOME": str(folder)}
    command = [sys.executable, "script.py", *arguments]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "safe"), [("0", 0), ("1", 4)])
def test_a_search_and_a_fit_leave_their_script_alone(tmp_path: Path, workers: str, safe: int) -> None:
    """Workers alone keep machine code in folders of ours; figures of the user are the user's there, too."""
    done = script("import sklearn\n" + START + SEARCH + FIT + END, tmp_path, str(tmp_path), workers)
    assert done.stdout.split() == ["2", f"{safe:.1f}", "fitted"]


def test_the_hook_is_there_no_longer_than_the_error_can_end_the_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def own(*_: object) -> None:
        print("own")

    monkeypatch.setattr(sys, "excepthook", own)
    for raised, status in ((UsageError("mend it"), 2), (StorageError("full"), 1)):
        with pytest.raises(UsageError), errors_in_one_line(), errors_in_one_line():
            raise raised
        with pytest.raises(SystemExit) as end:
            sys.excepthook(type(raised), raised, None)
        assert end.value.code == status and str(raised) in capsys.readouterr().err
    sys.excepthook(KeyError, KeyError(), None)
    assert capsys.readouterr().out == "own\n" and sys.excepthook is not own
    with errors_in_one_line():
        assert sys.excepthook is own
    assert sys.excepthook is own


@styled()
def drawn() -> Any:
    figure, axes = subplots()
    axes.plot([1, 2], [3.0, 2.5], label="test")
    axes.legend()
    return figure


def test_figures_have_one_style_and_leave_that_of_others(tmp_path: Path) -> None:
    with matplotlib.rc_context({"lines.linewidth": 7.0, "svg.hashsalt": None}):
        before = dict(matplotlib.rcParams)
        save(drawn(), tmp_path, "learning")
        assert dict(matplotlib.rcParams) == before
        again = drawn()
    assert {line.get_linewidth() for axes in again.axes for line in axes.lines} <= {1.0, 1.5, 2.0}
    first = (tmp_path / "learning.svg").read_bytes()
    save(again, tmp_path, "learning")
    assert (tmp_path / "learning.svg").read_bytes() == first
