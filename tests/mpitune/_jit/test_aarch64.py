"""What numba and our own LLVM code emit can be compiled for Grace and Graviton nodes too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT


@pytest.mark.slow
def test_what_is_compiled_can_be_compiled_for_aarch64(tmp_path: Path) -> None:
    """Into an empty cache, since numba shows no code that it has read from one."""
    processors = ("cortex-a72", "neoverse-v1")
    done = subprocess.run(
        [sys.executable, "-m", "tests.aarch64", *processors], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_OPT": "0"},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == list(processors)
    for line in lines:
        functions, n_bytes, fused = map(int, re.findall(r" (\d+)", line))
        assert functions >= 24 and n_bytes > 300_000 and fused > 500, line
