"""Ranks that Open MPI binds to one core, as it does by default."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.helpers import PATIENCE, ROOT, TOYS, mpirun_command

OPTIONS = ("4", "--gpu", "none", "--results")


@pytest.fixture
def bound() -> Any:
    """Runs toys on so many ranks, each bound to a core by mpirun."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")

    def run(ranks: int, *arguments: Any) -> str:
        command = mpirun_command(ranks)
        command[command.index("--bind-to") + 1] = "core"
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        arguments = (*command, sys.executable, *TOYS, *map(str, arguments))
        done = subprocess.run(arguments, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stderr

    return run


@pytest.mark.slow
def test_a_rank_alone_on_its_host_uses_the_cores_of_its_launcher_others_keep_theirs(bound: Any, tmp_path: Any) -> None:
    cores = len(os.sched_getaffinity(0))
    said = bound(1, *OPTIONS, tmp_path / "wide")
    assert f"{cores} slots on 1 node" in said
    assert said.count(f"mpirun had bound this rank to 1 of its own {cores} cores") == 1 and "warning" not in said
    said = bound(2, *OPTIONS, tmp_path / "shared")
    assert "2 slots on 2 nodes" in said and "had bound" not in said
