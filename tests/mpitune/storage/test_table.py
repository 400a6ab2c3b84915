"""Tables keep parameters and values whatever they are called, beside the columns of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mpitune
from mpitune import Choice, Int
from mpitune.storage.table import write_trials
from mpitune.trial import Outcome, Result, Trial
from tests.helpers import table
from tests.mpitune.optimize.objectives import searched

# Names of columns that each of the tables has itself.
OURS = ("number", "state", "seconds", "error", "key", "place", "attempt", "peak_mib", "trial", "failure")


def objective(trial: Any) -> dict[str, float]:
    return {name: 10.0 * trial.params[name] + n for n, name in enumerate(OURS)}


def test_values_and_parameters_may_be_called_as_any_column(tmp_path: Path) -> None:
    space = {name: Int(1, 2) if name == "seconds" else Choice(3) for name in OURS}
    study = searched(objective, space, strategy="grid", minimize="error", results=tmp_path / "r")
    kept, (loaded, _) = table(tmp_path / "r" / "trials.csv"), mpitune.load(tmp_path / "r")
    frames = {"to_pandas": study.to_pandas(), "load": loaded}
    written = [Outcome(Trial(f"t{t.number}", t.params), Result(f"t{t.number}", t.values)) for t in study.trials]
    write_trials(tmp_path / "trials.csv", written)
    for trial in study.trials:
        rows = {name: frame.iloc[trial.number] for name, frame in frames.items()}
        rows |= {"search": kept[trial.number], "experiment": table(tmp_path / "trials.csv")[trial.number]}
        for which, row in rows.items():
            for name in OURS:
                assert int(row[f"param_{name}"]) == trial.params[name], (which, name)
                assert float(row[f"value_{name}"]) == trial.values[name], (which, name)
    assert list(loaded["seconds"]) == pytest.approx([trial.seconds for trial in study.trials], abs=1e-6)
    assert [row["state"] for row in kept] == ["complete"] * 2
