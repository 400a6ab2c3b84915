"""Ranks of one job run the same code and the same libraries, or are told so."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from common.errors import Exit
from tests.helpers import ROOT, TOYS, mpirun_command


def test_a_rank_with_another_version_of_the_package_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    for package in ("common", "jit", "kernel_svm", "tests"):
        shutil.copytree(ROOT / package, other / package, ignore=shutil.ignore_patterns("__pycache__", "results"))
    with open(other / "common" / "trial.py", "a") as file:
        file.write("# a version of yesterday\n")

    def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
        program = [*TOYS, "4", "--gpu", "none", "--workers", "1", "--results", str(tmp_path / "r"), *options]
        rank = [sys.executable, *program]
        first = ["-wdir", str(ROOT), "-x", f"PYTHONPATH={ROOT}", *rank]
        second = ["-n", "1", "-wdir", str(folder), "-x", f"PYTHONPATH={folder}", *rank]
        command = [*mpirun_command(1), *first, ":", *second]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    refused = run(other)
    assert refused.returncode == Exit.USAGE
    assert re.search(r"different versions: code \w{8} on \S+, \w{8} on \S+: install the same on all", refused.stderr)
    assert not (tmp_path / "r").exists()
    allowed = run(other, "--allow-mixed-versions")
    assert allowed.returncode == Exit.DONE, allowed.stderr
    assert "different versions" in allowed.stderr
    assert "different versions" not in run(ROOT, "--restart").stderr
