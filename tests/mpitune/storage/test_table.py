"""Tables keep parameters and values whatever they are called, beside the columns of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mpitune
from mpitune import Choice, Int
from mpitune.storage.table import read_table, write_trials
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


TEXTS = ("=1+1", "+cmd|' /C calc'!A0", "-x", "@SUM(1)", "\t=1", "'=1", "''=1", "'a", "-1", "a", '=a,"b"', "- 1")


def test_a_spreadsheet_runs_no_text_and_reading_gives_it_back(tmp_path: Path) -> None:
    """Numbers stay numbers, in the table of a search and those of experiments."""
    space = {"kind": Choice(*TEXTS), "n": Choice(-1, -2.5)}
    study = searched(lambda trial: {"loss": -1.0}, space, strategy="grid", minimize="loss", results=tmp_path / "r")
    write_trials(tmp_path / "r" / "own.csv", [
        Outcome(Trial(f"t{t.number:06}", t.params), Result(f"t{t.number:06}", t.values)) for t in study.trials
    ])  # fmt: skip
    for name in ("trials.csv", "own.csv"):
        rows = table(tmp_path / "r" / name)
        assert {row["param_n"] for row in rows} == {"-1", "-2.5"} and {row["value_loss"] for row in rows} == {"-1.0"}
        cells = {row["param_kind"] for row in rows}
        assert len(cells) == len(TEXTS) and {cell for cell in cells if cell[0] in "=+-@\t"} == {"-1"}
        texts = [trial.params["kind"] for trial in study.trials]
        with open(tmp_path / "r" / name) as file:
            assert [row["param_kind"] for row in read_table(file)] == texts
