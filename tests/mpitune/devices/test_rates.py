"""Measured rates: the doctor's table, the file that is kept, and how a study holds on to those it began with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mpitune._jit.folders import library_folder
from mpitune.devices import rates
from mpitune.storage.history import read_study
from mpitune.storage.provenance import processor


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder is a fresh one, for processes too; what is compiled stays where it was."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(library_folder("NUMBA_CACHE_DIR")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_file_for_each_model_keeps_the_rates_of_all_programs(cache: Path) -> None:
    path = rates.keep("Example GPU 80/GB", "cuda", {"mnist_nn": {"copy": 1.0}})
    assert path.name == "rates-Example-GPU-80-GB.json" and path.is_relative_to(cache)
    assert rates.keep("Example GPU 80/GB", "cuda", {"mnist_svm": {"x": 2.0}}) == path
    rates.keep("Core", "cpu", {"mnist_nn": {"copy": 3.0}})
    assert rates.kept("mnist_nn", "cuda") == {"Example GPU 80/GB": {"copy": 1.0}}
    assert rates.kept("mnist_svm", "cuda") == {"Example GPU 80/GB": {"x": 2.0}}
    content = json.loads(path.read_text())
    assert content["device"] == "Example GPU 80/GB" and "numpy" in content["versions"]
    for damaged in ("", "[]", '{"device": 1, "programs": {}}', "{"):
        path.write_text(damaged)
        assert rates.kept("mnist_nn", "cuda") == {}


@pytest.mark.slow
def test_the_doctor_measures_this_processor(program: Any, tmp_path: Path) -> None:
    done = program("-m", "mpitune", "doctor", "--gpu", "none", "--workers", "1", "--benchmark", "--dataset", "digits",
                   "--results", tmp_path / "r")  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if "mnist_" in line]
    assert any("a copy" in line and "GB/s" in line for line in lines), done.stdout
    for what in ("small, autograd", "small, manual"):
        assert any(what in line and processor() in line for line in lines), done.stdout
    kept = rates.kept("mnist_nn", "cpu")[processor()]
    assert kept["copy"] > 1e8 and all(seconds > 0 for of in kept["seconds"].values() for seconds in of.values())
    assert "docs/gpus.md says where to send it" in done.stdout


@pytest.mark.slow
def test_a_study_keeps_the_rates_that_it_began_with(program: Any, tmp_path: Path) -> None:
    """Measured again, or for the first time, between two starts: nothing changes."""
    command = "-m mnist_nn 1 1 --dataset digits --train-size 60 --folds 2 --gpu none --workers 1 --plot 0 --epochs 1"
    words = (*command.split(), "--max-channels", "2", "--max-hidden-layer", "4")
    first = {"batch_size": 10, "seconds": {"1000": {"grouped": 1e-5, "manual": 2e-5}}}
    program(*words, "--results", tmp_path / "before")
    rates.keep("Example GPU", "cuda", {"mnist_nn": first})
    program(*words, "--results", tmp_path / "after")
    rates.keep("Example GPU", "cuda", {"mnist_nn": {**first, "seconds": {"1000": {"manual": 1e-6}}}})
    for name, found in (("before", None), ("after", {"Example GPU": first})):
        program(*words, "--results", tmp_path / name)
        assert read_study(tmp_path / name).header.get("beginnings") == found
    tables = {(tmp_path / name / "trials.csv").read_text().split("seconds")[0] for name in ("before", "after")}
    assert len(tables) == 1
