"""Machine code that is kept on disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpitune import svm
from mpitune._jit import cache
from tests.helpers import ROOT

pytest.importorskip("numba")

OUTER = """
from mpitune._jit.cache import compiled
from inner import inner

@compiled
def outer():
    return inner() + 1
"""
INNER = """
from mpitune._jit.cache import {how}

@{how}
def inner():
    return {value}
"""
PROGRAM = "from outer import outer; print(outer(), sum(outer.stats.cache_hits.values()))"


def run(folder: Path, program: str = PROGRAM, **environ: str) -> str:
    """What the program prints: the sum, and how many functions were read from the disk."""
    if not (folder / "outer.py").exists():  # older numba also looks at the time of the file
        (folder / "outer.py").write_text(OUTER)
    plain = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environ = {**plain, "PYTHONPATH": f"{folder}:{ROOT}", "XDG_CACHE_HOME": str(folder), **environ}
    # Without bytecode: a file of the same length changed within a second would be the old one to Python itself.
    command = [sys.executable, "-B", "-c", program]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["compiled", "part"])
def test_kept_code_is_used_until_something_it_calls_changes(tmp_path: Path, how: str) -> None:
    """In a folder of ours: numba keeps what others compile where it did."""
    program = PROGRAM.replace("print(", "import numba; print(numba.config.CACHE_DIR, ")
    (tmp_path / "inner.py").write_text(INNER.format(how=how, value=1))
    assert [run(tmp_path, program) for _ in range(2)] == ["2 0", "2 1"]
    (tmp_path / "inner.py").write_text(INNER.format(how=how, value=5))
    assert run(tmp_path) == "6 0"
    (tmp_path / "file").touch()
    for _ in range(2):  # nothing is kept in a folder that cannot be written
        assert run(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "file" / "numba")) == "6 0"


def test_a_room_stands_for_its_package_whose_rooms_call_each_other(tmp_path: Path) -> None:
    whole = Path(svm.__file__).parent
    assert cache._package(whole / "solver") == cache._package(whole) == whole
    assert cache._package(tmp_path) == tmp_path
    assert cache._digest(whole) != cache._digest(whole / "solver")
