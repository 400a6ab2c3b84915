"""Errors that users can fix: of which kind they are, and that no code of ours takes one for a library's."""

import argparse
import json
import re
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import sklearn.experimental.enable_halving_search_cv  # noqa: F401
import sklearn.model_selection as theirs

import mpitune.sklearn as ours
from mpitune import Float, RunOptions
from mpitune.errors import Caller, StorageError, UsageError, called_from, or_typed, typed
from mpitune.settings import from_namespace, require_seconds
from mpitune.storage.lines import FORMAT, read_header
from tests.helpers import HEADER, ROOT


def test_a_wrong_value_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="low must be below high"):
        Float(1, 0)
    assert issubclass(StorageError, UsageError) and issubclass(UsageError, ValueError)


NUMBERS = [field.name for field in fields(RunOptions) if field.type.removesuffix(" | None") in ("int", "float")]


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_of_the_options_is_one_and_in_its_range(name: str) -> None:
    for value in (float("nan"), float("inf"), -1, -(10**400), "5", True, [1]):
        with pytest.raises(UsageError, match=re.escape(f"{name}={value!r:.100} is ")):
            RunOptions(**{name: value})
        with pytest.raises(UsageError, match=re.escape(f"timeout={value!r:.100}: give a number of seconds above 0")):
            require_seconds("timeout", value)
    assert getattr(RunOptions(**{name: 3}), name) == 3


def test_an_error_of_ours_is_not_wrapped_as_a_librarys(tmp_path: Path) -> None:
    @dataclass
    class Refuses:
        def __post_init__(self) -> None:
            raise StorageError("full")

    with pytest.raises(StorageError):
        from_namespace(Refuses, argparse.Namespace())
    (tmp_path / "journal.jsonl").write_text(json.dumps({**HEADER, "format": 99}) + "\n")
    with pytest.raises(UsageError, match=f"has format 99, this program reads {FORMAT}"):
        read_header(tmp_path)


@pytest.mark.parametrize("name", ["GridSearchCV", "RandomizedSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV"])
def test_a_search_says_what_is_added_and_all_of_scikit_learns_own_text(name: str) -> None:
    said = getattr(ours, name).__doc__
    assert f"sklearn.model_selection.{name} on the engine" in said.splitlines()[0] and "trial_timeout: " in said
    own = [line.strip() for line in getattr(theirs, name).__doc__.splitlines() if line.strip()]
    assert [line for line in map(str.strip, said.splitlines()) if line][-len(own) :] == own


def test_options_in_advice_are_those_that_the_caller_types() -> None:
    """Code that scripts reach names no option by itself: `typed` knows who calls."""
    rooms = [ROOT / "mpitune" / room for room in ("engine", "ranks", "storage", "devices", "optimize", "sklearn")]
    files = {path for room in rooms for path in room.rglob("*.py")} - {ROOT / "mpitune" / "engine" / "options.py"}
    option = re.compile(r"--(restart|results folder|workers|gpu|expect)\b")
    assert len(files) > 50 and not [path for path in files if option.search(path.read_text())]
    assert (typed("restart"), typed("gpu", "none"), or_typed("restart")) == (
        "--restart",
        "--gpu none",
        ", or --restart",
    )
    two = called_from(Caller.ARGUMENTS), called_from(Caller.ARGUMENTS)  # of two threads: who began first ends first
    for step in ("__enter__", "__exit__"):
        for call in two:
            getattr(call, step)(*[None] * (3 * (step == "__exit__")))
    assert typed("restart") == "--restart"
    with called_from(Caller.OPTIONS):
        assert (typed("expect_nodes", 2), typed("gpu", "0,1")) == ("RunOptions(expect_nodes=2)", 'gpu="0,1"')
        with called_from(Caller.PROGRAM):
            assert typed("workers", 3) == "workers=3"
    with called_from(Caller.HYDRA):
        assert (typed("gpu", "0,1"), typed("join"), typed("restart")) == (
            "'hydra.sweeper.gpu=\"0,1\"'",
            "hydra.sweeper.join=true",
            "",
        )
    with called_from(Caller.SCRIPT):
        assert (typed("results", "r"), typed("restart"), typed("changed", ["f"])) == ("--results r", "--restart", "")
    with called_from(Caller.ARGUMENTS), called_from(Caller.OPTIONS):
        assert (typed("gpu", "none"), typed("restart"), or_typed("restart")) == ('gpu="none"', "", "")
