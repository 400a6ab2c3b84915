"""The manifests of k8s/, as `kubectl apply -k` would send them."""

import functools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT

yaml = pytest.importorskip("yaml", reason="no PyYAML: pip install -r requirements-dev.txt")

K8S = ROOT / "k8s"
KUSTOMIZATIONS = sorted(
    path.parent for path in K8S.rglob("kustomization.yaml") if "kind: Kustomization\n" in path.read_text()
)
MPIJOB_OVERLAYS = ("svm", "nn", "gke", "kueue", "mig", "cpu")

Manifest = dict[str, Any]


@functools.cache
def build(folder: Path) -> list[Manifest]:
    """All resources of a kustomization. Skips where there is no kustomize."""
    if shutil.which("kubectl"):
        command = ["kubectl", "kustomize", folder]
    elif shutil.which("kustomize"):
        command = ["kustomize", "build", folder]
    else:
        pytest.skip("kubectl and kustomize are not installed")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def overlay(name: str) -> list[Manifest]:
    return build(K8S / "overlays" / name)


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
    return [spec["template"]["spec"]] if "template" in spec else []


def environment(container: Manifest) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container.get("env", [])}
