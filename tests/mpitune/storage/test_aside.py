"""A study that is set aside, for one that uses its results or none, is whole wherever the new one was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitune.earlier.studies import earlier_studies
from mpitune.errors import UsageError
from mpitune.storage.history import read_study
from mpitune.storage.journal import Journal
from mpitune.trial import Result, Trial
from tests.helpers import HEADER

FILES = ["trials.csv"]
HOW: dict[str, dict[str, Any]] = {"before": {"succeeds": lambda theirs, mine: True}, "aside": {"restart": True}}


def begun(folder: Path, n: int, **how: Any) -> Journal:
    settings = {"experiment": "toy", "n": n}
    if "succeeds" in how:
        how["succeeds"] = lambda theirs, mine: theirs.header["settings"] != mine
    return Journal(folder, {**HEADER, "settings": settings}, files=FILES, durable=True, **how)


def made(folder: Path, n: int, **how: Any) -> None:
    """A study with a trial and all that lies beside its journal."""
    with closing(begun(folder, n, **how)) as journal:
        journal.append([(Trial(f"t{n}", {"x": n}), Result(f"t{n}", {"loss": 1.0}, {"a": np.full(2, n)}))])
    for name in ("trials", "jobs"):
        (folder / name).mkdir()
        (folder / name / "mine").write_text(str(n))
    for name in ("report.html", *FILES):
        (folder / name).write_text(str(n))


def killed_at(number: int, begins: Callable[[], Any]) -> bool:
    """Begin in a process that kills itself before the call of this number; whether that call was made."""
    if (process := os.fork()) == 0:
        calls = 0

        def counted(function: Any) -> Any:
            def instead(*args: Any, **kwargs: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)

            return instead

        for name in ("rename", "replace", "mkdir", "fsync"):
            setattr(os, name, counted(getattr(os, name)))
        try:
            begins()
        finally:
            os._exit(0)
    return os.waitpid(process, 0)[1] == signal.SIGKILL


def require_whole(folder: Path, n: int) -> None:
    (result,) = read_study(folder).results.values()
    assert result.key == f"t{n}" and list(result.arrays["a"]) == [n, n]
    for name in ("trials/mine", "jobs/mine", "report.html", *FILES):
        assert (folder / name).read_text() == str(n)


@pytest.mark.parametrize("kind", HOW)
def test_nothing_is_lost_or_mixed_wherever_the_new_study_was_killed(tmp_path: Path, kind: str) -> None:
    for number in range(1000):
        folder = tmp_path / str(number)
        made(folder, 1)
        killed = killed_at(number, lambda: begun(folder, 2, **HOW[kind]).close())  # noqa: B023
        history = read_study(folder)
        is_new = history.header["settings"]["n"] == 2
        assert len(history.results) == (not is_new)
        with closing(begun(folder, 2, **({} if is_new else HOW[kind]))) as journal:
            (place,) = [journal.history.header["aside"]] if kind == "aside" else journal.history.header["before"]
        require_whole(folder / place, 1)
        if not killed:
            break
    assert number > 8


def test_restart_renames_and_deletes_nothing(tmp_path: Path) -> None:
    tmp_path.joinpath("notes.txt").write_text("mine")
    tmp_path.joinpath("before-1").mkdir()  # of a start that found the disk full
    tmp_path.joinpath("before-2").write_text("mine, so that this number is not free")
    for n in range(3):
        made(tmp_path, n, restart=True)
    for n, name in enumerate(("before-1", "before-3", ".")):
        require_whole(tmp_path / name, n)
    assert {"before-1", "before-2", "before-3", "notes.txt"} < set(os.listdir(tmp_path))


def test_a_study_whose_results_are_used_must_be_there(tmp_path: Path) -> None:
    for n in (1, 2, 3):
        made(tmp_path, n, **HOW["before"])
    header = read_study(tmp_path).header
    assert [list(study.history.results) for study in earlier_studies(tmp_path, header)] == [["t1"], ["t2"]]
    tmp_path.joinpath("before-1").rename(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="before-1 holds no study, but .* uses its results: put it back"):
        earlier_studies(tmp_path, header)
