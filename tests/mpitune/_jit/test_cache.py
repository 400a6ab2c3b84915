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
    (tmp_path / "inner.py").write_text(INNER.format(how=how, value=1))
    assert run(tmp_path) == "2 0"
    assert run(tmp_path) == "2 1"
    (tmp_path / "inner.py").write_text(INNER.format(how=how, value=5))
    assert run(tmp_path) == "6 0"


@pytest.mark.slow
def test_numba_keeps_what_others_compile_in_this_process_where_it_did(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(INNER.format(how="part", value=1))
    program = "import numba, os; from outer import outer; print(outer(), numba.config.CACHE_DIR, len(os.environ))"
    variables = len({**os.environ, "PYTHONPATH": "", "XDG_CACHE_HOME": ""}.keys() - {"NUMBA_CACHE_DIR"})
    assert run(tmp_path, program) == f"2  {variables}"
    own = tmp_path / "own"
    assert run(tmp_path, program, NUMBA_CACHE_DIR=str(own)) == f"2 {own} {variables + 1}"


@pytest.mark.slow
def test_without_a_folder_that_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(INNER.format(how="compiled", value=1))
    (tmp_path / "file").touch()
    for _ in range(2):
        assert run(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "file" / "numba")) == "2 0"


def test_a_room_stands_for_its_package_whose_rooms_call_each_other(tmp_path: Path) -> None:
    whole = Path(svm.__file__).parent
    assert cache._package(whole / "solver") == cache._package(whole) == whole
    assert cache._package(tmp_path) == tmp_path
    assert cache._digest(whole) != cache._digest(whole / "solver")
