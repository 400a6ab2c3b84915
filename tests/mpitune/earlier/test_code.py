"""Digests of source: what a study calls changes them, comments and what stands beside do not; the same everywhere."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from mpitune import source
from mpitune.earlier.code import changes, digests
from tests.helpers import ROOT

SCRIPT = '''
from functools import lru_cache, partial, wraps
import json
import constants_of_a_test as constants
from bounds_of_a_test import at_least

EPOCHS = 3

@lru_cache
def loaded(n):
    return [n] * 2

class Base:
    rate = 0.5

    @property
    def scale(self):
        return seen(10)

class Model(Base):
    def __init__(self, momentum=0.9):
        self.momentum = momentum

def traced(function):
    return wraps(function)(lambda x: function(x) or 0)

@traced
def seen(x):
    return x

def power(x, n):
    return x ** n

square = partial(power, n=2)

def maker(shift):
    double = lambda x: 2 * x + shift
    return double

shifted = maker(1)
halves = [lambda x: x / 2, lambda x: x / 4]

def objective(trial, *, start=0):
    """What is minimized."""
    model = Model()
    if trial in {"a", "b"} and EPOCHS > 1:  # a comment
        return square(trial) - loaded(3)[0] + halves[0](1)
    import late_of_a_test
    return shifted(at_least(trial) + constants.LIMIT), json.dumps("a" "#b"), f"{{{start!r}}}", (
        "no docstring"
    )

def unused():
    return 1

callback = lambda x: x
'''

CHANGES = {  # what is written in place of what, and what is then said to have changed
    ("2 * x + shift", "3 * x + shift"): ["shifted"],
    ("x / 4", "x / 5"): ["halves"],
    ("[n] * 2", "[n] + 2"): ["loaded"],
    ("rate = 0.5", "rate = 0.6"): ["Base"],
    ("seen(10)", "seen(11)"): ["Base"],
    ("return x\n\ndef power", "return -x\n\ndef power"): ["seen"],
    ("momentum=0.9", "momentum=0.8"): ["Model"],
    ("x ** n", "x * n"): ["power"],
    ("(x) or 0", "(x) or 1"): ["seen"],
    ("start=0", "start=1"): ["objective"],
    ('"#b"', '"#c"'): ["objective"],
    ('"no docstring"', '"none"'): ["objective"],
    ("EPOCHS > 1", "EPOCHS > 2"): ["objective"],
    ("# a comment", "# another\n        # one"): [],
    ('"""What is minimized."""', '"""What is\n\n    maximized."""\n'): [],
    ("def power", "\n\n\nUNUSED = 3\n\ndef power"): [],
    ("return 1", "return 2"): [],
    ("EPOCHS = 3", "EPOCHS = 4"): [],  # a value is no source
    ("maker(1)", "maker(2)"): [],
    ('("a" "#b")', '(  # in a comment\n        "a#b")'): [],
}
Study = Callable[..., Any]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """Imports a script and modules beside it, as they are now; returns the script's objective."""
    monkeypatch.syspath_prepend(tmp_path)

    def imported(script: str = SCRIPT, limit: str = "LIMIT = 1", bound: str = "B = 1", late: str = "LATE = 1") -> Any:
        (tmp_path / "constants_of_a_test.py").write_text(f"{limit}\n")
        (tmp_path / "bounds_of_a_test.py").write_text(f"{bound}\ndef at_least(x):\n    return x\n")
        (tmp_path / "late_of_a_test.py").write_text(f"{late}\n")
        (tmp_path / "script_of_a_test.py").write_text(script)
        for name in ("constants_of_a_test", "bounds_of_a_test", "script_of_a_test"):
            sys.modules.pop(name, None)
        source.is_own.cache_clear()
        importlib.invalidate_caches()
        monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files change within a second
        return importlib.import_module("script_of_a_test").objective

    return imported


@pytest.mark.parametrize(("edit", "names"), CHANGES.items())
def test_what_a_study_calls_changes_its_digest(study: Study, edit: tuple[str, str], names: list[str]) -> None:
    before, after = edit
    assert SCRIPT.count(before) == 1
    first = digests({"objective": study()})
    assert changes(first, digests({"objective": study(SCRIPT.replace(before, after))})) == names


def test_of_modules_beside_it_the_whole_file_counts(study: Study) -> None:
    first = digests({"objective": study()})
    assert changes(first, digests({"objective": study(limit="LIMIT = 1  # a comment", late="# one\nLATE = 1")})) == []
    assert changes(first, digests({"objective": study(limit="LIMIT = 2")})) == ["constants_of_a_test"]
    assert changes(first, digests({"objective": study(bound="B = 2")})) == ["bounds_of_a_test"]
    assert changes(first, digests({"objective": study(late="LATE = 2")})) == ["late_of_a_test"]


def test_each_process_has_the_same(study: Study, tmp_path: Path) -> None:
    mine = digests({"objective": study()})
    assert mine["objective"] and mine["shifted"] != mine["loaded"] != ""
    code = "import script_of_a_test as it, mpitune.earlier.code as code; print(code.digests({'': it.objective}))"
    environ = {**os.environ, "PYTHONHASHSEED": "2", "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    assert subprocess.check_output([sys.executable, "-c", code], env=environ, text=True) == f"{mine}\n"


def test_what_has_no_source_is_known_by_name() -> None:
    """As a function that was typed in, one of C, and things with all attributes, in themselves, or endless."""
    loop: list[Any] = []
    loop.append(loop)
    chain: list[Any] = []
    for _ in range(2000):
        chain = [chain, print]
    typed: dict[str, Any] = {"__name__": "__main__", "strange": [MagicMock(), loop, chain, list(range(10**5)), type]}
    exec("def objective(trial): return strange\nclass Typed:\n    def f(self): objective\nf = lambda x: x", typed)
    found = digests({"objective": typed["objective"], "class": typed["Typed"], "f": typed["f"], "len": len})
    assert found == {"objective": "", "Typed": "", "f": ""}
    known = {"objective": "0123", "Typed": "", "f": ""}
    assert changes(found, known) == changes(known, found) == []
    assert changes(known, {**found, "objective": "0124"}) == ["objective"]
