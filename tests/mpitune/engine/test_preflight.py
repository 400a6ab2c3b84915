"""Ranks of one job run the same code and the same libraries, or are told so, also where they understand no word."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mpitune.errors import Exit
from tests.helpers import PATIENCE, ROOT, TOYS, mpirun_command


def test_every_package_of_ours_is_in_the_fingerprint(tmp_path: Path) -> None:
    """Also one that is imported in the workers alone."""
    shutil.copytree(ROOT / "mpitune", tmp_path / "mpitune", ignore=shutil.ignore_patterns("__pycache__"))
    code = "from mpitune.storage.provenance import code_and_libraries; print(code_and_libraries()['code'])"

    def fingerprint() -> str:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    found = [fingerprint(), fingerprint()]
    assert found[0] == found[1]
    for changed in ("mpitune/_jit/simd.py", "mpitune/svm/solver/path.py"):
        with open(tmp_path / changed, "a") as file:
            file.write("\n")
        found.append(fingerprint())
    assert len(set(found)) == 3


@pytest.mark.slow
def test_a_rank_with_another_version_of_the_package_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    for package in ("mpitune", "tests"):
        shutil.copytree(ROOT / package, other / package, ignore=shutil.ignore_patterns("__pycache__", "results"))
    with open(other / "mpitune" / "trial.py", "a") as file:
        file.write("# a version of yesterday\n")

    def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
        program = [*TOYS, "4", "--gpu", "none", "--workers", "1", "--results", str(tmp_path / "r"), *options]
        rank = [sys.executable, *program]
        first = ["-wdir", str(ROOT), "-x", f"PYTHONPATH={ROOT}", *rank]
        second = ["-n", "1", "-wdir", str(folder), "-x", f"PYTHONPATH={folder}", *rank]
        command = [*mpirun_command(1), *first, ":", *second]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)

    refused = run(other)
    assert refused.returncode == Exit.USAGE
    assert re.search(r"different versions: code \w{8} on \S+, \w{8} on \S+: install the same on all", refused.stderr)
    assert not (tmp_path / "r").exists()
    assert run(ROOT).returncode == Exit.DONE
