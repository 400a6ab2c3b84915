"""Rooms of a package call each other's compiled functions, so what is kept on disk depends on all of them."""

from __future__ import annotations

from pathlib import Path

from mpitune import svm
from mpitune._jit import cache


def test_a_room_stands_for_its_package(tmp_path: Path) -> None:
    whole = Path(svm.__file__).parent
    assert cache._package(whole / "solver") == cache._package(whole) == whole
    assert cache._package(tmp_path) == tmp_path
    assert cache._digest(whole) != cache._digest(whole / "solver")
