"""`mpitune.load`, and the names that MLflow takes."""

import math
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpitune
from mpitune.errors import UsageError
from mpitune.exchange.loading import LoadedStudy
from mpitune.optimize.strategies.halving import Hyperband
from mpitune.storage.journal import Journal
from mpitune.track.writers import _taken
from mpitune.trial import Place, Result, Trial
from tests.helpers import HEADER

pytestmark = pytest.mark.xdist_group("loading")  # one process makes the studies that they share
HOSTILE = "../../<script>, \"quoted\"\n'or' $x$"


def stepped(trial: Any) -> Any:
    trial.set_user_attr("made", [trial.number, "é"])
    for step in range(trial.start, 4):
        yield {"step": step + 1, "loss": abs(trial.params["lr"] - 0.01) / (step + 1), "other": 2.0}


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of a search whose trials have stages, and the study that it gave."""
    folder = tmp_path_factory.mktemp("searched") / "r"
    space = {
        "lr": mpitune.Float(1e-5, 1e-1, log=True),
        "units": mpitune.Int(1, 9),
        "act": mpitune.Choice("relu", "gelu"),
    }
    strategy = Hyperband(max_steps=4)
    study = mpitune.search(stepped, space, strategy=strategy, n_trials=6, minimize="loss", results=folder, workers=0)
    return folder, study


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study with all that a journal may hold, and keys of a stranger."""
    folder = tmp_path_factory.mktemp("written")
    how: Any = {"seconds": 2.0, "ended": 1.7e9, "peak_bytes": 1 << 30, "place": Place("node<b>", 1, 2, "cuda:GPU-1")}
    done = Result("a/0", {"loss": 0.25, "seconds": 99.0, "error": 8.0}, {"p": np.arange(3.0)}, **how)
    results = [
        (Trial("a/0", {"C": 0.001, "kernel": "rbf"}), done),
        (Trial("a/1", {"C": 1000.0, "kernel": 3}), replace(done, key="a/1", values={"loss": math.inf}, arrays={})),
        (Trial(HOSTILE, {"C": 1}), Result(HOSTILE, error=f"Error: {HOSTILE}")),
    ]
    with closing(Journal(folder, {**HEADER, "goal": "minimize loss"})) as journal:
        journal.append(results)
    return folder


def test_load_gives_a_table_and_arrays(written: Path, searched: tuple[Path, Any]) -> None:
    trials, arrays = mpitune.load(written)
    assert list(trials.index) == ["a/0", "a/1", HOSTILE]
    first = trials.loc["a/0"]
    assert (first["param_C"], first["value_loss"], first["state"]) == (0.001, 0.25, "complete")
    assert first["peak_bytes"] == 1 << 30
    assert first["ended"].timestamp() == 1.7e9 and first["host"] == "node<b>"
    assert trials.loc[HOSTILE, "state"] == "failed" and math.isnan(trials.loc[HOSTILE, "value_loss"])
    assert list(arrays) == ["a/0"]
    np.testing.assert_array_equal(arrays["a/0"]["p"], [0, 1, 2])
    assert "3 trials (2 complete, 1 failed)" in repr(mpitune.load(written)) and "value_loss" in repr(
        mpitune.load(written)
    )
    folder, study = searched
    trials, arrays = mpitune.load(str(folder))
    assert list(trials["value_loss"]) == [trial.values["loss"] for trial in study.trials] and not arrays
    assert list(trials["state"]) == [trial.state for trial in study.trials] and "pruned" in set(trials["state"])


TABLE = ("state seconds ended peak_bytes host rank slot device attempt error").split()


@pytest.mark.parametrize("n", [0, 2])
def test_load_has_all_columns_and_nan_where_nothing_is(tmp_path: Path, n: int) -> None:
    """Numbers stay numbers, also before the first trial and where a machine has measured nothing."""
    results = [
        (Trial("a", {"kind": "x", "C": 1.5}), Result("a", {"loss": 1.0}, peak_bytes=1 << 30)),
        (Trial("b", {}), Result("b", error="Error: b")),
    ]
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.append(results[:n])
    trials, _ = mpitune.load(tmp_path)
    found = {"param_kind", "param_C", "value_loss"} if n else set()
    assert set(trials.columns) == {*TABLE, *found} and len(trials) == n
    assert set(TABLE) <= set(re.findall(r"\w+", LoadedStudy.__doc__ or "")), "as it is described"
    assert all(trials[name].dtype == float for name in ("peak_bytes", "seconds", *(found - {"param_kind"})))
    assert trials["ended"].dt.year.isna().all() and not any(value is None for name in trials for value in trials[name])
    if n:
        assert trials.isna().loc["b", ["value_loss", "param_C", "param_kind", "peak_bytes", "ended"]].all()
        assert trials["error"].tolist() == ["", "Error: b"]
    with pytest.raises(UsageError, match="holds no study"):
        mpitune.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("loss", "loss"), ("a/b", "a/b"), ("lr (log)", "lr _28_log_29_"), ("..", "_2e__2e_"), ("/a", "_2f_a"),
        ("a//b", "a_2f__2f_b"), ("\u00fc", "\u00fc"), ("", "_"),
    ],
)  # fmt: skip
def test_names_that_mlflow_does_not_take_are_there_by_codes(name: str, known: str) -> None:
    long = _taken("n" * 300)
    assert _taken(name) == known and len(long) <= 250 and long != _taken("n" * 301)
