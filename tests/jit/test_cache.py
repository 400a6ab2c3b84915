"""Machine code that is kept on disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT

pytest.importorskip("numba")

OUTER = """
from jit.cache import compiled
from inner import inner

@compiled
def outer():
    return inner() + 1
"""
INNER = """
from jit.cache import compiled

@compiled
def inner():
    return {}
"""
PROGRAM = "from outer import outer; print(outer(), sum(outer.stats.cache_hits.values()))"


def test_kept_code_is_used_until_something_it_calls_changes(tmp_path: Path) -> None:
    def run() -> str:
        environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "XDG_CACHE_HOME": str(tmp_path)}
        command = [sys.executable, "-c", PROGRAM]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.strip()

    (tmp_path / "outer.py").write_text(OUTER)
    (tmp_path / "inner.py").write_text(INNER.format(1))
    assert run() == "2 0"
    assert run() == "2 1"
    (tmp_path / "inner.py").write_text(INNER.format(5))
    assert run() == "6 0"
