"""The manifests of k8s/, as `kubectl apply -k` would send them."""

import functools
import os
import shutil
import subprocess
from typing import Any

import pytest

from tests.helpers import ROOT

yaml = pytest.importorskip("yaml", reason="no PyYAML: pip install -r requirements-dev.txt")

K8S = ROOT / "k8s"
OVERLAYS = sorted(path.name for path in (K8S / "overlays").iterdir() if not path.name.startswith("."))
MPIJOB_OVERLAYS = ("svm", "nn", "cpu", "svm gke", "nn kueue", "nn mig", "svm gke gke-mig")
# What show.sh makes of an overlay and components, as the README names them.
COMBINATIONS = (
    "svm gke", "nn gke", "svm gke gke-mig", "nn mig kueue", "ddp gke", "ddp cpu", "ddp one-node", "ddp one-node gke",
    "join kueue", "join seeds", "join seeds gke gke-mig spot", "join gke spot kueue", "trainjob kueue", "storage kueue",
    "storage bucket", "storage filestore", "nfs disk-1tb", "service public",
    "trainjob gke", "trainjob gke gke-mig", "trainjob mig", "trainjob one-node", "trainjob cpu",
)  # fmt: skip

Manifest = dict[str, Any]


@functools.cache
def overlay(name: str) -> list[Manifest]:
    """An overlay, and components, as show.sh makes them; or a file."""
    if name.endswith(".yaml"):
        return load((K8S / name).read_text())
    if not shutil.which("kubectl"):
        pytest.skip("no kubectl")
    return load(shown(*name.split()))


def shown(*words: str, image: str = "search") -> str:
    """What k8s/show.sh prints."""
    done = subprocess.run([K8S / "show.sh", *words], capture_output=True, text=True, env={**os.environ, "IMAGE": image})
    assert done.returncode == 0, done.stderr
    return done.stdout


def load(text: str) -> list[Manifest]:
    return list(yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def mpijobs(name: str) -> dict[str, Manifest]:
    """The MPI jobs of an overlay by name."""
    return {one["metadata"]["name"]: one for one in overlay(name) if one["kind"] == "MPIJob"}


def pod_specs(manifest: Manifest) -> list[Manifest]:
    """The specs of all pods that a manifest makes."""
    spec = manifest.get("spec", {})
    replicas = spec.get("mpiReplicaSpecs") or spec.get("pytorchReplicaSpecs")
    if replicas:
        return [replica["template"]["spec"] for replica in replicas.values()]
    if manifest["kind"] == "Pod":
        return [spec]
    if manifest["kind"] == "TrainJob":  # the runtime's pod as it is patched
        (nodes,) = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        pod = nodes["template"]["spec"]["template"]["spec"]
        (node,) = pod["containers"]
        return [{**pod, "containers": [{**node, "resources": spec["trainer"]["resourcesPerNode"]}]}]
    return [spec["template"]["spec"]] if "template" in spec else []


def environment(container: Manifest) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container.get("env", [])}
