"""Every overlay builds, is valid for a cluster's API, and asks for a command that the programs take."""

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
from tests.k8s.manifests import COMBINATIONS, K8S, MPIJOB_OVERLAYS, OVERLAYS, environment, mpijobs, overlay, pod_specs
from tests.programs import EXPERIMENTS, accepted

pytestmark = pytest.mark.xdist_group("manifests")  # one process builds each overlay once

KUBERNETES = "1.32"
CORE = ("v1", "apps/v1", "batch/v1", "rbac.authorization.k8s.io/v1")

each_kustomization = pytest.mark.parametrize("name", [*OVERLAYS, *COMBINATIONS, "queue.yaml"])
each_mpijob_overlay = pytest.mark.parametrize("name", MPIJOB_OVERLAYS)
LAUNCHER, WORKER = (f"spec mpiReplicaSpecs {role} template spec" for role in ("Launcher", "Worker"))


def at(manifest: Any, path: str) -> Any:
    """What is there, by names and numbers with spaces between; None for nothing."""
    for name in path.split():
        if isinstance(manifest, list):
            manifest = manifest[int(name)] if int(name) < len(manifest) else None
        else:
            manifest = (manifest or {}).get(name)
    return manifest


@each_kustomization
def test_core_kinds_are_valid(name: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for manifest in overlay(name):
        if manifest["apiVersion"] in CORE:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@each_mpijob_overlay
def test_a_launcher_may_do_what_it_does_and_nobody_else_may(name: str) -> None:
    """Its account, which the Role binds, may delete pods and end its own Job; workers have no token."""
    kinds = {(one["kind"], one["metadata"]["name"]): one for one in overlay(name)}
    for job in mpijobs(name).values():
        account = f"{job['metadata']['name']}-launcher"  # the operator names the Job so
        assert at(job, f"{LAUNCHER} serviceAccountName") == account and ("ServiceAccount", account) in kinds
        assert at(job, f"{WORKER} automountServiceAccountToken") is False
        assert at(kinds["RoleBinding", account], "subjects") == [{"kind": "ServiceAccount", "name": account}]
        pods, jobs = kinds["Role", account]["rules"]
        assert (pods["verbs"], jobs["resourceNames"], jobs["verbs"]) == (["deletecollection"], [account], ["patch"])


DDP = {"resume": True, "results": Path("/results/ddp"), "data_folder": Path("/data")}  # what made again goes on there


@pytest.mark.parametrize(
    ("words", "program", "given"),
    [
        *((name, {"svm": "mnist_svm", "nn": "mnist_nn"}.get(name.split()[0], ""), {}) for name in MPIJOB_OVERLAYS),
        *((name, "mnist_nn.ddp", DDP) for name in ("ddp", "ddp cpu", "trainjob", "trainjob cpu")),
        ("service public", "mnist_nn.ddp", {"save_model": True, "resume": True}),
        ("join gke spot", "mnist_svm", {"grace": 10}),  # trials have less time than the pod
        ("join seeds gke spot", "mnist_nn", {"grace": 10}),
    ],
)  # fmt: skip
def test_the_program_takes_the_command(words: str, program: str, given: dict[str, Any]) -> None:
    """As the shell would split it, by the program's own parser."""
    asked = []
    for manifest in overlay(words):
        trainer = at(manifest, "spec trainer")
        for one in [trainer] if trainer else [each for pod in pod_specs(manifest) for each in pod["containers"]]:
            env = environment(one)
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


@each_kustomization
def test_pods_are_unprivileged_bounded_and_whole(name: str) -> None:
    """Memory is limited, nothing runs as root, and each mount has its volume; the NFS server is the one exception."""
    claims = {one["metadata"]["name"] for one in overlay("storage") if one["kind"].endswith("Claim")}
    assert claims == {"results", "data"}
    for manifest in overlay(name):
        for pod in pod_specs(manifest):
            claimed = {one.get("persistentVolumeClaim", {}).get("claimName") for one in pod.get("volumes", [])}
            assert claimed <= claims | {"nfs-disk", None}
            volumes = {volume["name"] for volume in pod.get("volumes", [])}
            for one in pod["containers"] + pod.get("initContainers", []):
                assert {mount["name"] for mount in one.get("volumeMounts", [])} <= volumes
                assert "privileged" not in one.get("securityContext", {})
            if manifest["metadata"]["name"] == "nfs":
                assert all(one["securityContext"]["capabilities"]["drop"] == ["ALL"] for one in pod["containers"])
                continue
            security = pod["securityContext"]
            assert security["runAsNonRoot"] and security["runAsUser"] == security["fsGroup"] == 1000
            for one in pod["containers"]:
                assert one["securityContext"]["allowPrivilegeEscalation"] is False
                assert "memory" in one["resources"]["limits"] and "memory" in one["resources"]["requests"]


@pytest.mark.parametrize(
    ("words", "image", "says"),
    [
        ("", "a/b:c", "give an overlay"),
        ("dance", "a/b:c", "there is no overlay dance"),
        ("svm waltz", "a/b:c", "there is no component waltz"),
        ("svm", "", "IMAGE=: give the image"),
        *((words, "localhost:5000/a/search:7", "") for words in ("svm", "trainjob", "ddp gke", "nfs")),
    ],
)
def test_show_puts_the_image_everywhere_or_says_what_there_is(words: str, image: str, says: str) -> None:
    if not says and shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    environ = {**os.environ, "IMAGE": image}
    done = subprocess.run([ROOT / "k8s" / "show.sh", *words.split()], capture_output=True, text=True, env=environ)
    if says:
        assert done.returncode == 2 and says in done.stderr and not done.stdout
        assert "overlays: cpu ddp" in done.stderr and "components: bucket cpu" in done.stderr
    else:
        assert done.returncode == 0 and set(re.findall(r" image: (.*)", done.stdout)) == {image}


README = (K8S / "README.md").read_text()


def test_every_overlay_and_file_that_is_named_is_there() -> None:
    for path in re.findall(r"\b(k8s/(?:overlays|components|base)[\w./-]*)", README):
        assert (ROOT / path.rstrip(".")).exists(), path
    tables = README.split("## What there is")[1].split("\n\n")[1:3]
    for kind, table in zip(("overlays", "components"), tables, strict=True):
        named = {name for row in table.splitlines() for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}
        assert named == {path.name for path in (K8S / kind).iterdir() if not path.name.startswith(".")}


@pytest.mark.parametrize("words", sorted(set(re.findall(r"k8s/show\.sh ([a-z1-9 -]+?) *(?:\\?\||>|`)", README))))
def test_every_combination_that_is_named_builds(words: str) -> None:
    assert overlay(words)
