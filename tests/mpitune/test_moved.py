"""Journals of the time before the package was `mpitune` (commit d55d243): the same call or command continues them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitune import Choice, Float, Int, search
from mpitune.sklearn import GridSearchCV
from mpitune.svm import SVC
from tests.helpers import ROOT, journal_lines

OLD = ROOT / "tests" / "data" / "journals-before-mpitune"


def begun(name: str, folder: Path) -> Path:
    """A study that was stopped in its middle."""
    shutil.copytree(OLD / name, folder / name)
    return folder / name


def assert_continued(folder: Path, n: int) -> None:
    """What was there is there, and each of n trials once."""
    assert (folder / "journal.jsonl").read_bytes().startswith((OLD / folder.name / "journal.jsonl").read_bytes())
    keys = [line["key"] for line in journal_lines(folder)]
    assert len(keys) == len(set(keys)) == n


def loss(trial: Any) -> dict[str, float]:
    return {"loss": (trial.params["lr"] - 0.01) ** 2 + abs(trial.params["units"] - 64)}


def test_a_search_of_then(tmp_path: Path) -> None:
    folder = begun("search", tmp_path)
    space = {"lr": Float(1e-5, 1e-1, log=True), "units": Int(8, 512, log=True), "act": Choice("relu", "gelu")}
    study = search(loss, space, strategy="sobol", n_trials=8, minimize="loss", results=folder, workers=0)
    assert_continued(folder, 8)
    assert study.best.params["units"] == 42 and study.best.params["act"] == "relu"


def test_a_grid_of_our_svc_of_then(tmp_path: Path) -> None:
    """Its header has a digest of the estimator, in which the class has its old name."""
    folder = begun("folds", tmp_path)
    X, y = np.random.default_rng(3).normal(size=(40, 2)), np.arange(40) % 2
    X[y == 1] += 0.8
    grid = {"C": [1.0, 10.0], "gamma": [0.1, 1.0]}
    found = GridSearchCV(SVC(), grid, cv=2, refit=False, workers=0, results=folder).fit(X, y)
    assert_continued(folder, 8)
    assert found.cv_results_["mean_test_score"] == pytest.approx([0.6, 0.65, 0.625, 0.6])


def test_mnist_svm_of_then(tmp_path: Path, program: Callable[..., Any]) -> None:
    folder = begun("mnist_svm", tmp_path)
    sizes = ("--train-size", 200, "--test-size", 50)
    said = program(
        "-m", "mnist_svm", 3, "--dataset", "digits", *sizes, "--gpu", "none", "--workers", 1, "--results", folder
    ).stdout
    assert_continued(folder, 46)
    assert "31.6228" in said and "14.0000%" in said
