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


def run(folder: Path, **environ: str) -> str:
    """What the program prints: the sum, and how many functions were read from the disk."""
    (folder / "outer.py").write_text(OUTER)
    environ = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "XDG_CACHE_HOME": str(folder), **environ}
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.strip()


def test_kept_code_is_used_until_something_it_calls_changes(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(INNER.format(1))
    assert run(tmp_path) == "2 0"
    assert run(tmp_path) == "2 1"
    (tmp_path / "inner.py").write_text(INNER.format(5))
    assert run(tmp_path) == "6 0"


def test_without_a_folder_that_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(INNER.format(1))
    (tmp_path / "file").touch()
    for _ in range(2):
        assert run(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "file" / "numba")) == "2 0"
