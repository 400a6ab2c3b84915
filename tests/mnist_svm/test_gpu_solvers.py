"""Solvers where there are GPUs: who uses them, who leaves them alone, and what cuML does not tell."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.svm import SVC

from mnist_svm.dataset import Dataset
from mnist_svm.experiment import SvmGrid
from mnist_svm.objective import SvmObjective
from mnist_svm.solvers import make_solver
from mpitune.errors import UsageError
from mpitune.experiment import WorkerContext
from mpitune.port import WantsCores

DIGITS = SvmGrid(2, dataset="digits", train_size=150, test_size=50, solver="cuml")


def test_cuml_does_not_tell_whether_it_converged_so_its_results_have_no_such_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """scikit-learn's class stands in for cuML's, which takes the same arguments, and numpy for cupy."""
    monkeypatch.setitem(sys.modules, "cuml.svm", SimpleNamespace(SVC=SVC))
    monkeypatch.setitem(sys.modules, "cuml", SimpleNamespace())
    cupy = SimpleNamespace(asarray=np.asarray, asnumpy=np.asarray, unique=np.unique, float32=np.float32)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    dataset = Dataset.of(DIGITS.data(), 5, 16)
    (search,) = DIGITS.searches()
    solver = make_solver("cuml", WorkerContext("cuda", {}), multiclass="ovo", memory=0, n_points=1)
    results = list(SvmObjective(dataset, solver)(next(search)[0]))
    assert results and all(
        result.values.keys() == {"error", "n_support"} and result.values["n_support"] > 0 for result in results
    )


def test_only_cuml_uses_gpus() -> None:
    for solver in ("auto", "shared", "sklearn"):
        SvmGrid(2, solver=solver).check("cpu", "")
        with pytest.raises(WantsCores, match=f"--solver {solver} uses all CPU cores"):
            SvmGrid(2, solver=solver).check("cuda", "0")
    with pytest.raises(UsageError, match="--solver cuml: "):
        SvmGrid(2, solver="cuml").check("cuda", "0")
