"""Commands of k8s/README.md in their order, by the real kubectl against a small API server; see server.py."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT
from tests.k8s import cloud
from tests.k8s.manifests import load
from tests.k8s.server import Server, definition
from tests.test_readme_blocks import blocks

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")

PRODUCT = "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
OPERATOR = """
apiVersion: v1
kind: Namespace
metadata: {{name: {namespace}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec: {{containers: [{{name: operator, image: operator}}]}}
---
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a reader stands: k8s/ and the package's data are there."""
    (tmp_path / "k8s").symlink_to(ROOT / "k8s")
    (tmp_path / "data" / "MNIST").mkdir(parents=True)
    (tmp_path / "data" / "MNIST" / "images").write_text("of digits")
    (tmp_path / "cluster").mkdir()
    return tmp_path


def section(title: str) -> list[list[str]]:
    """The blocks of a section, each as lines."""
    text = (ROOT / "k8s" / "README.md").read_text()
    inside = text.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return [block.splitlines() for block in blocks("k8s/README.md") if block.splitlines()[0] in inside]


def shell(server: Server, folder: Path, lines: list[str]) -> "subprocess.CompletedProcess[str]":
    """The lines, one after the other, until one of them fails."""
    environ = {**os.environ, "KUBECONFIG": server.kubeconfig, "IMAGE": "registry.io/search:gpu"}
    script = "set -euxo pipefail\n" + "\n".join(lines)
    return subprocess.run(["bash", "-c", script], cwd=folder, env=environ, capture_output=True, text=True)


def gives(server: Server, *definitions: tuple[str, str, str, str]) -> None:
    """What the administrator has installed."""
    for one in definitions:
        (made,) = load(definition(*one))
        server.put("customresourcedefinitions", made)
    server.act()


@pytest.mark.slow
def test_a_search_on_a_cluster_with_gpus(folder: Path) -> None:
    settings = {"SEARCH": "mnist_svm 2 --solver sklearn", "OPTIONS": "--dataset digits --gpu none --workers 1"}
    program = "python -m $SEARCH $OPTIONS --data /data --results $RESULTS"  # without mpirun, which test_mpijob.py has
    commands = {
        "launcher": ["sh", "-c", program],
        "load-data": ["mkdir", "-p", "/data/MNIST"],
    }
    (folder / "operator.yaml").write_text(definition("kubeflow.org", "v2beta1", "mpijobs", "MPIJob"))
    with Server(folder / "cluster", settings, commands) as server:
        server.put("nodes", {"metadata": {"name": "a", "labels": {}}})
        (lines,) = section("A cluster with GPUs")
        assert lines[0].startswith("docker build") and "mpi-operator" in lines[2]
        install = re.sub(r"-f http\S+", "-f operator.yaml", lines[2])
        done = shell(server, folder, [lines[1], install, *lines[3:]])
        assert done.returncode == 0, done.stderr
        assert (folder / "results" / "svm" / "journal.jsonl").exists()


@pytest.mark.slow
def test_pods_that_join_and_more_of_them(folder: Path) -> None:
    settings = {"SEARCH": "mnist_svm 2 --solver sklearn", "OPTIONS": "--dataset digits --gpu none --workers 1"}
    with Server(folder / "cluster", settings, {"load-data": ["mkdir", "-p", "/data/MNIST"]}) as server:
        server.put("nodes", {"metadata": {"name": "a", "labels": {}}})
        first, more = section("Pods that join: no operator, no MPI")
        done = shell(server, folder, ["k8s/show.sh storage | kubectl apply -f -", *first])
        assert done.returncode == 0, done.stderr
        assert "complete" in done.stdout and (folder / "cluster" / "results" / "svm" / "report.html").exists()
        done = shell(server, folder, more)
        assert done.returncode == 0, done.stderr
        assert {job["metadata"]["name"] for job in server.of("jobs")} == {"load-data", "join", "join-2"}


@pytest.mark.slow
def test_a_service_from_its_namespace_to_the_clean_up(folder: Path) -> None:
    small = "mnist_nn 1 1 --max-channels 8 --max-hidden-layer 16 --epochs 1 --plot 1"
    settings = {"SEARCH": small, "OPTIONS": "--dataset digits --gpu none --workers 1"}
    trained = ["sh", "-c", "mkdir -p /results/train && echo weights > /results/train/model.pt"]
    with Server(folder / "cluster", settings, {"train": trained}) as server:
        kueue = "kueue.x-k8s.io"
        gives(server, (kueue, "v1beta1", "localqueues", "LocalQueue"), (kueue, "v1beta1", "workloads", "Workload"))
        server.put("storageclasses", {"metadata": {"name": "standard-rwx"}})
        server.put("nodes", {"metadata": {"name": "a", "labels": {"nvidia.com/gpu.product": PRODUCT}}})
        server.put("localqueues", {"metadata": {"name": "searches", "namespace": "mine"}})
        (*before, clean_up), public = section("A service with a queue")
        done = shell(server, folder, before)
        assert done.returncode == 0, done.stderr
        assert (folder / "cluster" / "data" / "MNIST" / "images").read_text() == "of digits"
        journals = sorted((folder / "results").glob("nn-seed-*/journal.jsonl"))
        assert [path.parent.name for path in journals] == ["nn-seed-0", "nn-seed-1", "nn-seed-2"]
        for job in server.of("jobs"):
            assert job["metadata"]["namespace"] == "mine"
            assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "searches"
        assert {job["metadata"]["name"] for job in server.of("jobs")} == {"loader", "seeds"}
        # The same with a public image. The last line is of a program that other tests run.
        assert "mnist_nn.predict" in public[-1]
        for name in re.findall(r"for part in ([\w .]+);", "".join(public))[0].split():
            (folder / name).write_text(name) if "." in name else (folder / name).mkdir()
        (folder / "mpitune" / "__init__.py").touch()
        done = shell(server, folder, public[:-1])
        assert done.returncode == 0, done.stderr
        assert (folder / "cluster" / "data" / "code" / "mpitune" / "__init__.py").exists()
        assert (folder / "cluster" / "data" / "code" / "requirements.txt").exists()
        assert (folder / "train" / "model.pt").exists()
        done = shell(server, folder, [clean_up])
        assert done.returncode == 0, done.stderr
        for plural in ("jobs", "pods", "persistentvolumeclaims"):
            assert not server.of(plural)


@pytest.mark.parametrize("missing", ["storageclasses", "nodes", "localqueues"])
def test_what_the_service_does_not_have_is_waited_for(missing: str, folder: Path) -> None:
    """The stand-in is no yes-man: with a wrong setting nothing starts."""
    with Server(folder / "cluster") as server:
        gives(server, ("kueue.x-k8s.io", "v1beta1", "localqueues", "LocalQueue"))
        there: dict[str, dict[str, Any]] = {
            "storageclasses": {"name": "standard-rwx"},
            "nodes": {"name": "a", "labels": {"nvidia.com/gpu.product": PRODUCT}},
            "localqueues": {"name": "searches"},
        }
        for plural, metadata in there.items():
            server.put(plural, {"metadata": {**metadata, "labels": {}} if plural == missing == "nodes" else metadata})
        if missing != "nodes":
            (key,) = [key for key in server.objects if key[0] == missing]
            server.remove(*key)
        wait = "kubectl wait --for=jsonpath='{.status.ready}'"
        done = shell(server, folder, ["k8s/show.sh service | kubectl apply -f -", f"{wait}=1 job/loader --timeout=2s"])
        if missing == "nodes":
            assert done.returncode == 0, done.stderr
            done = shell(server, folder, [f"{wait}=3 job/seeds --timeout=2s"])
        assert done.returncode == 1 and "timed out waiting" in done.stderr


@pytest.mark.parametrize(
    ("block", "version", "plural", "kind", "pods"),
    [
        (0, "trainer.kubeflow.org/v1alpha1", "trainjobs", "TrainJob", {f"ddp-node-0-{n}-x" for n in range(4)}),
        (2, "kubeflow.org/v1", "pytorchjobs", "PyTorchJob", {"ddp-master-0", *(f"ddp-worker-{n}" for n in range(3))}),
    ],
)
def test_data_parallel_training_without_gke(
    block: int, version: str, plural: str, kind: str, pods: set[str], folder: Path
) -> None:
    trained = ["sh", "-c", "mkdir -p /results/ddp && echo rows > /results/ddp/ddp.csv && echo trained"]
    commands = {"load-data": ["mkdir", "-p", "/data/MNIST"], "pytorch": trained, "node": trained}
    group, version = version.split("/")
    name, namespace = {
        "TrainJob": ("kubeflow-trainer-controller-manager", "kubeflow-system"),
        "PyTorchJob": ("training-operator", "kubeflow"),
    }[kind]
    operator = OPERATOR.format(name=name, namespace=namespace)
    (folder / "operator.yaml").write_text(operator + definition(group, version, plural, kind))
    with Server(folder / "cluster", commands=commands) as server:
        server.put("nodes", {"metadata": {"name": "a", "labels": {}}})
        said = section("Data-parallel training")
        lines = [re.sub(r'-k "github\.com/kubeflow/\S+"', "-f operator.yaml", line) for line in said[block]]
        assert "operator.yaml" in lines[0] and not any("github" in line for line in lines)
        done = shell(server, folder, [line.replace("sleep 5", "sleep 0.1") for line in lines])
        assert done.returncode == 0, done.stderr
        assert "failed calling webhook" in done.stderr and server.refusals == 0
        assert (folder / "results" / "ddp" / "ddp.csv").read_text() == "rows\n"

        def names() -> set[str]:
            return {pod["metadata"]["name"] for pod in server.of("pods") if pod["metadata"]["name"].startswith("ddp")}

        assert names() == pods
        if block == 0:
            done = shell(server, folder, said[1])
            assert done.returncode == 0, done.stderr
            server.act()
            assert names() == {"ddp-node-0-0-x", "ddp-node-0-1-x"}


@pytest.mark.parametrize("kinds", [[], ["mpijobs"]])
def test_gke_down_deletes_volumes_by_the_real_kubectl(kinds: list[str], folder: Path) -> None:
    """Its own commands, in a cluster whose claims are used by pods of a job that would make them again."""
    with Server(folder / "cluster") as server:
        for plural in kinds:
            gives(server, ("kubeflow.org", "v2beta1", plural, "MPIJob"))
        server.put("nodes", {"metadata": {"name": "a", "labels": {}}})
        done = shell(server, folder, ["k8s/show.sh nfs | kubectl apply -f -"])
        assert done.returncode == 0, done.stderr
        claim = server.objects["persistentvolumeclaims", "default", "nfs-disk"]
        server.put("persistentvolumeclaims", {**claim, "spec": {**claim["spec"], "volumeName": "pvc-1"}})
        handle = "projects/test/zones/us-central1-a/disks/pvc-1"
        server.put("persistentvolumes", {"metadata": {"name": "pvc-1"}, "spec": {"csi": {"volumeHandle": handle}}})
        if kinds:
            done = shell(server, folder, ["k8s/show.sh svm | kubectl apply -f -"])
            assert done.returncode == 0, done.stderr
        script = f"""
            kubectl() {{ shift 2; {shutil.which("kubectl")} "$@"; }}
            timeout() {{ while [[ $1 != kubectl ]]; do shift; done; "$@"; }}
            PROJECT=test ZONE=us-central1-a CLUSTER=test NODES=1 CALL_TIMEOUT=60 READY_TIMEOUT=60 RESULTS={folder}
            . k8s/gke/tools.sh; . k8s/gke/cluster.sh
            remember_disks
            empty_cluster
        """
        done = shell(server, folder, [script])
        assert done.returncode == 0, done.stderr
        left = {key[0] for key in server.objects} - {"namespaces", "nodes", "customresourcedefinitions"}
        assert not left & {"jobs", "pods", "deployments", "persistentvolumeclaims", "mpijobs"}
        assert [one["metadata"]["name"] for one in server.of("persistentvolumes")] == ["data", "results"]  # no disks
        # The stand-in of test_gke.py says of an unknown kind what kubectl says.
        done = shell(server, folder, ["kubectl delete tfjob,pod --all"])
        with pytest.raises(LookupError) as error:
            cloud.resources({"kinds": kinds}, shlex.split("delete tfjob,pod --all"))
        assert done.returncode == 1 and str(error.value) in done.stderr
