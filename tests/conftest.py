"""What all tests share: running programs as a user does, on one process or under a real mpirun."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT, mpirun_command

SHARED_MNIST = ROOT.parent / "shared" / "data"


@pytest.fixture
def program() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `python ARGUMENTS` in the repository, under mpirun when ranks are given."""

    def run(*arguments: Any, ranks: int = 0, status: int | None = 0, **options: Any) -> Any:
        command = [*(mpirun_command(ranks) if ranks else []), sys.executable, *map(str, arguments)]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
        options = {"cwd": ROOT, "timeout": 240, "capture_output": True, "text": True, **options}
        done = subprocess.run(command, env=environ, **options)
        if status is not None:
            assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture(scope="session")
def mnist() -> Path:
    """The folder of real MNIST in torchvision's layout. Skips where there is none."""
    for folder in (ROOT / "data", SHARED_MNIST):
        if (folder / "MNIST" / "raw").exists():
            return folder
    pytest.skip("MNIST is in neither ./data nor ../shared/data: python -m common.data --dataset mnist")
