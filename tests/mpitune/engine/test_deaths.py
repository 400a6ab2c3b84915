"""What the journal keeps of workers: the peak of their memory, and their deaths."""

from pathlib import Path
from typing import Any

import pytest

from mpitune.storage.history import read_study
from tests.helpers import TOYS, table


def test_deaths_and_peaks_of_memory_are_in_the_journal(program: Any, tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    study = (*TOYS, "6", "--gpu", "none", "--workers", "1", "--at", "t2=sigkill")
    program(*study, "--marks", tmp_path / "marks", "--results", tmp_path / "r")
    history = read_study(tmp_path / "r")
    began, lasted = history.runs[0]["began"], history.ends[0]["seconds"]
    for result in history.results.values():
        assert began <= result.ended <= began + lasted
        assert (result.peak_bytes or 0) > 10 << 20
    rows = table(tmp_path / "r" / "trials.csv")
    assert all(int(row["peak_mib"]) >= 10 for row in rows)
    (death,) = history.deaths
    assert death.key == "t2" and "SIGKILL" in death.cause and death.place[3] == "cpu" and death.seconds >= 0


@pytest.mark.slow
def test_what_a_worker_that_died_had_worked_leaves_out_its_start(program: Any, tmp_path: Path) -> None:
    """The second worker takes as long to be built as the first; its trial kills it at once."""
    study = (*TOYS, "1", "--gpu", "none", "--workers", "1", "--compiles", "1.0", "--at", "t0=sigkill")
    program(*study, "--results", tmp_path / "r", status=None)
    deaths = read_study(tmp_path / "r").deaths
    assert [death.key for death in deaths] == ["t0", "t0"]
    assert deaths[1].seconds < deaths[1].time - deaths[0].time - 0.9
