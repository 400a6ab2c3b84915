"""Every overlay builds, is valid for a cluster's API, and asks for a command that the programs take."""

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mnist_nn.parallel.settings import Settings
from mpitune.settings import Parser, add_settings, from_namespace
from tests.helpers import ROOT
from tests.programs import EXPERIMENTS, accepted

yaml = pytest.importorskip("yaml", reason="no PyYAML: pip install -r requirements-dev.txt")
pytestmark = pytest.mark.xdist_group("manifests")  # one process builds each overlay once

K8S = ROOT / "k8s"
README = (K8S / "README.md").read_text()
KUBERNETES = "1.32"
CORE = ("v1", "apps/v1", "batch/v1", "rbac.authorization.k8s.io/v1")
MPIJOBS = ("svm", "nn", "cpu", "svm gke", "nn kueue", "nn mig", "svm gke gke-mig")
OVERLAYS = [path.name for path in (K8S / "overlays").iterdir() if not path.name.startswith(".")]
NAMED = re.findall(r"k8s/show\.sh ([a-z1-9 -]+?) *(?:\\?\||>|`)", README)
COMBINATIONS = (
    "nn mig kueue", "ddp gke", "ddp cpu", "ddp one-node gke", "join seeds gke gke-mig spot", "join gke spot kueue",
    "trainjob kueue", "storage kueue", "storage bucket", "storage filestore", "nfs disk-1tb", "trainjob gke gke-mig",
    "trainjob mig", "trainjob cpu",
)  # fmt: skip
EACH = sorted({*OVERLAYS, *NAMED, *MPIJOBS, *COMBINATIONS})


def shown(*words: str, image: str = "search") -> "subprocess.CompletedProcess[str]":
    """What k8s/show.sh prints."""
    environ = {**os.environ, "IMAGE": image}
    return subprocess.run([K8S / "show.sh", *words], capture_output=True, text=True, env=environ)


@functools.cache
def overlay(name: str) -> list[Any]:
    """The manifests of an overlay with components; or of a file."""
    text = (K8S / name).read_text() if name.endswith(".yaml") else ""
    if not text and not shutil.which("kubectl"):
        pytest.skip("no kubectl")
    manifests = list(yaml.load_all(text or shown(*name.split()).stdout, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    assert manifests, name
    return manifests


def pod_specs(manifest: Any) -> list[Any]:
    """The specs of all pods that a manifest makes."""
    spec = manifest.get("spec", {})
    if replicas := spec.get("mpiReplicaSpecs") or spec.get("pytorchReplicaSpecs"):
        return [replica["template"]["spec"] for replica in replicas.values()]
    if manifest["kind"] == "TrainJob":  # the runtime's pod as it is patched
        (nodes,) = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        pod = nodes["template"]["spec"]["template"]["spec"]
        (node,) = pod["containers"]
        return [{**pod, "containers": [{**node, "resources": spec["trainer"]["resourcesPerNode"], **spec["trainer"]}]}]
    return [spec] if manifest["kind"] == "Pod" else [spec["template"]["spec"]] if "template" in spec else []


@pytest.mark.parametrize("name", [*EACH, "queue.yaml"])
def test_pods_are_valid_unprivileged_bounded_and_whole(name: str) -> None:
    """Memory is limited, nothing runs as root, and each mount has its volume; the NFS server is the one exception."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for manifest in overlay(name):
        if manifest["apiVersion"] in CORE:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        for pod in pod_specs(manifest):
            volumes = {one["name"]: one for one in pod.get("volumes", [])}
            claims = [one.get("persistentVolumeClaim", {}).get("claimName") for one in volumes.values()]
            assert {*claims} <= {"results", "data", "nfs-disk", None}
            server = manifest["metadata"]["name"] == "nfs"
            assert server or pod["securityContext"]["runAsNonRoot"]
            assert server or pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 1000
            for one in pod["containers"] + pod.get("initContainers", []):
                assert {mount["name"] for mount in one.get("volumeMounts", [])} <= {*volumes}
                assert "privileged" not in one.get("securityContext", {})
            for one in pod["containers"]:
                assert one["securityContext"]["capabilities"]["drop"] == ["ALL"]
                assert server or one["securityContext"]["allowPrivilegeEscalation"] is False
                assert server or ("memory" in one["resources"]["limits"] and "memory" in one["resources"]["requests"])


@pytest.mark.parametrize("name", MPIJOBS)
def test_a_launcher_may_delete_pods_and_end_its_own_job_and_nobody_else_may(name: str) -> None:
    kinds = {(one["kind"], one["metadata"]["name"]): one for one in overlay(name)}
    for job in (one for one in overlay(name) if one["kind"] == "MPIJob"):
        launcher, worker = (job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"] for role in ("Launcher", "Worker"))
        account = f"{job['metadata']['name']}-launcher"  # the operator names the Job so
        assert launcher["serviceAccountName"] == account and ("ServiceAccount", account) in kinds
        assert worker["automountServiceAccountToken"] is False
        assert kinds["RoleBinding", account]["subjects"] == [{"kind": "ServiceAccount", "name": account}]
        pods, jobs = kinds["Role", account]["rules"]
        assert (pods["verbs"], jobs["resourceNames"], jobs["verbs"]) == (["deletecollection"], [account], ["patch"])


DDP = {"resume": True, "results": Path("/results/ddp"), "data_folder": Path("/data")}  # what made again goes on there


@pytest.mark.parametrize(
    ("words", "program", "given"),
    [
        *((name, {"svm": "mnist_svm", "nn": "mnist_nn"}.get(name.split()[0], ""), {}) for name in MPIJOBS),
        *((name, "mnist_nn.ddp", DDP) for name in ("ddp", "ddp cpu", "trainjob", "trainjob cpu")),
        ("service public", "mnist_nn.ddp", {"save_model": True, "resume": True}),
        ("join gke spot", "mnist_svm", {"grace": 10}),  # trials have less time than the pod
        ("join seeds gke spot", "mnist_nn", {"grace": 10}),
    ],
)  # fmt: skip
def test_the_program_takes_the_command(words: str, program: str, given: dict[str, Any]) -> None:
    asked = []
    for one in (each for manifest in overlay(words) for pod in pod_specs(manifest) for each in pod["containers"]):
        env = {entry["name"]: entry.get("value", "") for entry in one.get("env", [])}
        if "SEARCH" in env:
            folder = env["RESULTS"] + ("-0 --seed 0" if "seeds" in words else "")
            line = f"{env['SEARCH']} --data /data --results {folder} {env['OPTIONS']}".split()
            asked.append((line[0], accepted(line[0], line[1:])))
        elif "mnist_nn.ddp" in (line := [*one.get("command", ()), *one.get("args", ())]):
            parser = Parser(prog="ddp")
            add_settings(parser, Settings)
            asked.append(("mnist_nn.ddp", from_namespace(Settings, parser.parse_args(line[3:]))))
    assert {name for name, _ in asked} >= ({program} if program else set(EXPERIMENTS))
    for name, options in asked:
        assert name != program or {key: getattr(options, key) for key in given} == given


def test_show_puts_the_image_everywhere_or_says_what_there_is() -> None:
    for words, says in {"": "give an overlay", "dance": "no overlay dance", "svm waltz": "no component waltz"}.items():
        done = shown(*words.split())
        assert done.returncode == 2 and says in done.stderr and "components: bucket cpu" in done.stderr
    assert "IMAGE=: give the image" in shown("svm", image="").stderr
    for words in ("svm", "trainjob", "ddp gke", "nfs") if shutil.which("kubectl") else ():
        assert set(re.findall(r" image: (.*)", shown(*words.split(), image="a:5/b:7").stdout)) == {"a:5/b:7"}


def test_the_tables_of_the_readme_have_all_overlays_and_components() -> None:
    for kind, table in zip(
        ("overlays", "components"), README.split("## What there is")[1].split("\n\n")[1:3], strict=True
    ):
        named = {name for row in table.splitlines() for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}
        assert named == {path.name for path in (K8S / kind).iterdir() if not path.name.startswith(".")}
