"""A search says what its estimator does: the refit is the model that was scored."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import sklearn.model_selection as theirs
from sklearn.datasets import load_wine
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from mpitune import svm
from mpitune.sklearn import GridSearchCV, HalvingGridSearchCV
from mpitune.sklearn.fits.evaluator import Evaluator
from tests.mpitune.sklearn.iris import X, Y, caught, same

WINE, KINDS = load_wine(return_X_y=True)


def _fits(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Has what each fit of our solver returns from now on; it refits few samples, too."""
    monkeypatch.setattr("mpitune.sklearn.search.place.FEW_SAMPLES", 0)
    fitted: list[Any] = []
    fit = svm.SVC.fit
    monkeypatch.setattr(svm.SVC, "fit", lambda self, *args, **kw: fitted.append(fit(self, *args, **kw)) or self)
    return fitted


@pytest.mark.parametrize("search", [GridSearchCV, HalvingGridSearchCV])
def test_the_refit_is_of_scikit_learns_class(monkeypatch: pytest.MonkeyPatch, search: Any) -> None:
    fitted = _fits(monkeypatch)
    more = {} if search is GridSearchCV else {"random_state": 0}
    ours = search(SVC(), {"C": [0.5, 2.0], "gamma": [0.1, 0.5]}, cv=3, workers=0, **more).fit(X, Y)
    reference = SVC(**ours.best_params_).fit(X, Y)
    assert type(ours.best_estimator_) is SVC and len(fitted) == 1
    assert vars(ours.best_estimator_).keys() == vars(reference).keys()
    assert np.abs(ours.decision_function(X) - reference.decision_function(X)).max() < 5e-3


@pytest.mark.parametrize(("sizes", "loaded"), [("2 2", "False,False True,False"), ("1000", "True,False")])
def test_the_solver_is_loaded_where_that_takes_less_time_than_single_fits(sizes: str, loaded: str) -> None:
    """A new process, a small grid, one more, and one of so many points that loading numba is worth it."""
    script = """if True:
        import sys; from sklearn import datasets, pipeline, svm
        from mpitune.sklearn import GridSearchCV
        for n in map(int, sys.argv[1:]):
            model = svm.SVC() if n > 2 else pipeline.Pipeline([("a", None), ("b", svm.SVC())])
            search = GridSearchCV(model, {"C" if n > 2 else "b__C": [1 + i / n for i in range(n)]}, workers=0)
            search.fit(*datasets.load_iris(return_X_y=True))
            print("numba" in sys.modules, "mpitune.studies" in sys.modules, sep=",")"""
    assert subprocess.check_output([sys.executable, "-c", script, *sizes.split()], text=True).split() == loaded.split()


def test_without_the_memory_for_all_samples_libsvm_refits(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def refused(self: Any, *args: Any) -> Any:
        raise MemoryError("too many")

    monkeypatch.setattr("mpitune.sklearn.search.place.FEW_SAMPLES", 0)
    monkeypatch.setattr(svm.SVC, "fit", refused)
    same(
        GridSearchCV(SVC(), {"C": [0.5, 2.0]}, cv=3, workers=0).fit(X, Y),
        theirs.GridSearchCV(SVC(), {"C": [0.5, 2.0]}, cv=3).fit(X, Y),
    )
    assert "too many" in caplog.text


@pytest.mark.parametrize(
    "more, own", [({}, True), ({"share": False}, False), ({"scoring": lambda model, X, y: model.score(X, y)}, False)]
)
def test_who_scored_a_candidate_refits_it(monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], own: bool) -> None:
    """A Pipeline whose scorer may look into it is not solved as a grid, nor is its best candidate."""
    fitted = _fits(monkeypatch)
    model = make_pipeline(StandardScaler(), SVC())
    search = GridSearchCV(model, {"svc__C": [0.5, 2.0]}, cv=3, workers=0, **more).fit(X, Y)
    assert len(fitted) == own and type(search.best_estimator_[-1]) is SVC


def test_one_candidate_below_its_scaler_is_of_the_solver_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which candidates a worker has decides nothing about how one of them is fitted."""
    grid = [{"standardscaler__with_mean": [True], "svc__C": [1.0]}, {"svc__C": [0.5, 2.0]}]
    search = GridSearchCV(make_pipeline(StandardScaler(), SVC()), grid, cv=2)
    grouping = caught(search)[1]
    fits: list[int] = []
    fit = SVC.fit
    monkeypatch.setattr(SVC, "fit", lambda self, X, y, sample_weight=None: fits.append(1) or fit(self, X, y))
    for batch in (grouping.tasks, [task for task in grouping.tasks if task.candidate == 0]):
        assert len(list(Evaluator(grouping)(tuple(task.trial(*task.labels()) for task in batch)))) == len(batch)
    assert not fits


@pytest.mark.parametrize("workers", [0, 1])
def test_each_fit_has_a_line(capsys: pytest.CaptureFixture[str], workers: int) -> None:
    how: dict[str, Any] = {"verbose": 2, "scoring": ["accuracy", "f1_macro"], "refit": False, "workers": workers}
    GridSearchCV(KNeighborsClassifier(), {"n_neighbors": [1, 3]}, cv=2, **how).fit(X, Y)
    lines = sorted(line for line in capsys.readouterr().out.splitlines() if " END " in line)
    wanted = [f"[CV {fold}/2; {n + 1}/2] END n_neighbors={(1, 3)[n]}; accuracy=0.9" for fold in (1, 2) for n in (0, 1)]
    assert len(lines) == 4 and all(line.startswith(want) for line, want in zip(lines, wanted, strict=True))
    assert all(", f1_macro=0.9" in line and " total time=" in line for line in lines)


@pytest.mark.parametrize("n_jobs, workers", [(1, 1), (2, 2), (64, 2), (-1, 2), (-2, 1), (None, None)])
def test_no_more_workers_than_cores(monkeypatch: pytest.MonkeyPatch, n_jobs: int | None, workers: int | None) -> None:
    monkeypatch.setattr("mpitune.sklearn.search.searches.usable_cores", lambda: 2)
    assert GridSearchCV(ExtraTreesClassifier(), {}, n_jobs=n_jobs)._n_workers == workers
    assert GridSearchCV(ExtraTreesClassifier(), {}, n_jobs=n_jobs, workers=5)._n_workers == 5
