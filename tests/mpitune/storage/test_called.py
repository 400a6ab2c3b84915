"""Digests of code: what changes results changes them, comments and places do not; the same in each process."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from mpitune.storage import called
from mpitune.storage.called import changes, digests, is_named
from tests.helpers import ROOT

SCRIPT = '''
from argparse import Namespace
from functools import lru_cache, partial
import json

EPOCHS, LAYERS, SEEN = 3, {"units": [8, 16]}, []
arguments = Namespace(depth=2, results="a")

@lru_cache
def loaded(n):
    return [n] * 2

class Base:
    rate = 0.5

    @property
    def scale(self):
        return 10

    @staticmethod
    def other(x):
        return -x

class Model(Base):
    def __init__(self, momentum=0.9):
        self.momentum = momentum

    def fitted(self, x):
        return x * self.rate

def power(x, n):
    return x ** n

square = partial(power, n=2)

def maker(shift):
    double = lambda x: 2 * x + shift
    return double

shifted = maker(1)

def objective(trial, *, start=0):
    """What is minimized."""
    model = Model()
    if trial in {"a", "b", "c"} and EPOCHS > 1:  # a comment
        return square(trial) - loaded(3)[0]
    try:
        value = float(trial)
        other = json.dumps(value)
    except ValueError:
        return LAYERS["units"][0] + arguments.depth
    SEEN.append(other)
    return shifted(model.fitted(value)) or [unit for unit in LAYERS if unit]
'''

CHANGES = {  # what is written in place of what, and what is then said to have changed
    ("2 * x + shift", "3 * x + shift"): ["shifted"],
    ("maker(1)", "maker(2)"): ["shift"],
    ("EPOCHS, LAYERS, SEEN = 3", "EPOCHS, LAYERS, SEEN = 4"): ["EPOCHS"],
    ("[8, 16]", "[8, 32]"): ["LAYERS"],
    ("depth=2", "depth=3"): ["arguments.depth"],
    ("[n] * 2", "[n] + 2"): ["loaded"],
    ("rate = 0.5", "rate = 0.6"): ["Base.rate"],
    ("return 10", "return 11"): ["Base.scale"],
    ("return -x", "return +x"): ["Base.other"],
    ("momentum=0.9", "momentum=0.8"): ["Model.__init__"],
    ("x * self.rate", "self.rate * x"): ["Model.fitted"],
    ("x ** n", "x * n"): ["power"],
    ("power, n=2", "power, n=3"): ["square[n]"],
    ("start=0", "start=1"): ["objective"],
    ("EPOCHS > 1", "EPOCHS > 2"): ["objective"],
    ('"b", "c"', '"b", "d"'): ["objective"],
    ("= float(trial)", "= int(trial)"): ["objective"],
    ("    except", "        SEEN.append(other)\n    except"): ["objective"],
    ("json.dumps(value)\n    except ValueError:", "json.dumps(value)\n    except TypeError:"): ["objective"],
    ("shifted = maker(1)", "shifted = abs"): ["shift", "shifted"],
}
SAME = {
    ("# a comment", "# another\n        # one"): [],
    ('"""What is minimized."""', '"""What is\n\n    maximized."""'): [],
    ("def power", "\n\n\nUNUSED = 3\n\ndef power"): [],
    ('results="a"', 'results="b"'): [],
    ("trial in {", "(trial)    in  {"): [],
    ('"a", "b", "c"', '"c", "b", "a"'): [],
    ("SEEN = 3, {", "SEEN = (\n    3), {"): [],
}


def code_of(source: str) -> dict[str, str]:
    script: dict[str, Any] = {"__name__": "__main__"}
    exec(source, script)
    return digests({"objective": script["objective"]})


@pytest.mark.parametrize(("edit", "names"), [*CHANGES.items(), *SAME.items()])
def test_what_changes_results_changes_a_digest_of_its_name(edit: tuple[str, str], names: list[str]) -> None:
    before, after = edit
    assert SCRIPT.count(before) == 1
    assert sorted(changes(code_of(SCRIPT), code_of(SCRIPT.replace(before, after)))) == names


def test_another_format_of_the_source_is_the_same() -> None:
    """Of this package's own functions, all comments, line breaks and spare brackets gone; a jump may differ."""
    n_same = n = 0
    for path in (ROOT / "mpitune").rglob("*.py"):
        source = path.read_text()
        texts = [source, ast.unparse(ast.parse(source))]
        codes = [called._codes(compile(text, "", "exec", dont_inherit=True)) for text in texts]
        for one, other in zip(*codes, strict=True):
            n_same, n = n_same + (called._shown_code(one) == called._shown_code(other)), n + 1
    assert n > 1000 and n_same >= 0.98 * n


def test_each_process_has_the_same(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        SCRIPT + 'from mpitune.storage.called import digests\nprint(digests({"": objective}))'
    )
    said = {
        subprocess.check_output(
            [sys.executable, "script.py"], cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
        )
        for seed in "1234"
    }  # fmt: skip
    assert len(said) == 1 and str(code_of(SCRIPT)) == said.pop().decode().strip()


def test_strange_things_are_walked_to_their_end() -> None:
    """Things with all attributes, a list in itself, a long chain, and data."""
    loop: list[Any] = []
    loop.append(loop)
    chain: list[Any] = []
    for _ in range(2000):
        chain = [chain, print]
    strange = [MagicMock(), loop, chain, list(range(100_000)), type]
    script: dict[str, Any] = {"__name__": "__main__", "strange": strange}
    exec("def objective(trial): return strange", script)
    assert list(digests({"objective": script["objective"]})) == ["objective"]


def test_a_module_beside_the_script_counts_also_where_it_is_imported_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    late = "def objective(trial):\n    import json, late_helper_of_a_test as h\n    return h.loss(trial)\n"
    helper = tmp_path / "late_helper_of_a_test.py"
    helper.write_text("def loss(x):\n    return x\n")
    first = code_of(late)
    helper.write_text("# a comment\ndef loss(x): return x\n")
    assert code_of(late) == first
    helper.write_text("def loss(x): return -x\n")
    assert changes(first, code_of(late)) == ["late_helper_of_a_test"]


def test_what_another_minor_version_wrote_is_not_compared() -> None:
    mine = code_of(SCRIPT)
    assert changes(dict.fromkeys(mine, "3.9 0123"), mine) == []


def test_a_change_is_named_by_its_function_or_its_class() -> None:
    assert (
        is_named("loss", ["loss"])
        and is_named("Model.fitted", ["Model"])
        and is_named("Model.fitted", ["Model.fitted"])
    )
    assert not is_named("loss", ["Model"]) and not is_named("Model.fitted", ["fit"])
