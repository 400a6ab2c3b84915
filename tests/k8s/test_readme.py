"""The first steps of k8s/README.md in their order, against stand-ins that refuse what could not work yet."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.k8s.manifests import K8S

README = (K8S / "README.md").read_text()

# $HAS is a folder of what exists by now: images here, images in kind and in the registry, accounts, repositories.
DOCKER = """\
case "$1" in
    build) while [ "$1" != -t ]; do shift; done; touch "$HAS/here-${2//\\//_}" ;;
    push)
        [ -e "$HAS/here-${2//\\//_}" ] || { echo "no image $2"; exit 1; }
        [ -e "$HAS/login" ] && [ -e "$HAS/registry-login" ] && [ -e "$HAS/repository" ] || { echo "denied"; exit 1; }
        touch "$HAS/pushed-${2//\\//_}" ;;
    *) exit 2 ;;
esac
"""
KIND = """\
case "$1 $2" in
    "create cluster") touch "$HAS/cluster" ;;
    "load docker-image") [ -e "$HAS/cluster" ] && [ -e "$HAS/here-$3" ] && touch "$HAS/node-$3" ;;
    *) exit 2 ;;
esac
"""
GCLOUD = """\
case "$*" in
    "auth login") touch "$HAS/login" ;;
    "components install kubectl gke-gcloud-auth-plugin") ;;
    "--project mine services enable container.googleapis.com"*artifactregistry*) touch "$HAS/services" ;;
    "--project mine artifacts repositories create search "*"docker --location us-central1")
        [ -e "$HAS/services" ] && touch "$HAS/repository" ;;
    "--project mine artifacts repositories add-iam-policy-binding search "*roles/artifactregistry.reader*)
        [ -e "$HAS/repository" ] ;;
    "auth configure-docker us-central1-docker.pkg.dev") [ -e "$HAS/login" ] && touch "$HAS/registry-login" ;;
    *) exit 2 ;;
esac
"""
# What is applied must name an image that the nodes can have: loaded into kind, or of a registry.
KUBECTL = """\
judge() {
    images=$(grep -oE 'image: .*' | grep -vE 'nfs|kubeflow' | sort -u)
    case "$images" in
        "") ;;
        "image: search:cpu") [ -e "$HAS/node-search:cpu" ] || { echo "ErrImagePull search:cpu"; exit 1; } ;;
        "image: REGISTRY/search:gpu") ;;
        *) echo "ErrImagePull $images"; exit 1 ;;
    esac
    touch "$HAS/applied"
}
case "$1" in
    kustomize) exec "$REAL" "$@" ;;
    apply)
        case "$2 $3" in
            "--server-side -f") touch "$HAS/operator" ;;
            "-k k8s/"*) "$REAL" kustomize "$3" | judge ;;
            "-f -") judge ;;
            *) exit 2 ;;
        esac ;;
    wait | logs | exec | cp) [ -e "$HAS/applied" ] ;;
    *) exit 2 ;;
esac
"""


def blocks() -> list[str]:
    """The commands of the chapter "Five lines to a result", one text for each block."""
    chapter = README.split("## Five lines to a result")[1].split("\n## ")[0]
    return [
        re.sub(r"^    ", "", text, flags=re.MULTILINE) for text in re.findall(r"(?:^    .*\n)+", chapter, re.MULTILINE)
    ]


def test_first_steps_work_in_their_order(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    has = tmp_path / "has"
    has.mkdir()
    for name, text in (("docker", DOCKER), ("kind", KIND), ("gcloud", GCLOUD), ("kubectl", KUBECTL)):
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}")
        (tmp_path / name).chmod(0o755)
    found = blocks()
    assert len(found) == 4 and "kind create" in found[0] and "auth login" in found[1] and "gke.sh" in found[2]
    # What makes a cluster is tried in test_gke.py; here it is printed.
    found[2] = re.sub(r"k8s/gke.sh run\n.*", "k8s/gke.sh --dry-run run\n", found[2])
    environ = {
        **os.environ, "HAS": str(has), "REAL": shutil.which("kubectl") or "",
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "RESULTS": str(tmp_path / "results"),
    }  # fmt: skip
    for block in found:
        script = "set -eo pipefail\n" + block.replace(" && ", "\n")  # bash forgives what fails before &&
        done = subprocess.run(["bash", "-c", script], cwd=ROOT, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, f"{block}\n{done.stdout[-1000:]}\n{done.stderr[-1000:]}"
    assert (has / "pushed-us-central1-docker.pkg.dev_mine_search_search:gpu").exists() and (has / "operator").exists()


def test_every_overlay_and_file_that_is_named_is_there() -> None:
    for path in re.findall(r"\b(k8s/(?:overlays|components|storage|base)[\w./-]*)", README):
        assert (ROOT / path.rstrip(".")).exists(), path
    table = README.split("## What there is")[1].split("\n\n")[1]
    named = set(re.findall(r"`(?:overlays/)?([\w.-]+)`", table))
    there = {path.name for path in (K8S / "overlays").iterdir() if not path.name.startswith(".")}
    assert there <= named, there - named
