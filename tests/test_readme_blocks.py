"""Every block of every README, in its order, as one session of a shell; the programs are stand-ins that judge it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.k8s import cloud
from tests.stand_ins import commands

READMES = (
    "README.md", "k8s/README.md", "slurm/README.md", "apptainer/README.md", "docs/clusters.md", "docs/gpu.md",
    "docs/installing.md", "docs/programs.md",
)  # fmt: skip
SCRIPT = '#!/bin/sh\nexec {python} -S -E {module} {name} "$@"\n'
# A search that is fetched by k8s/gke.sh.
FETCHED = '{"end":{"complete":true,"seconds":1800.0}}\n'


def blocks(readme: str) -> list[str]:
    """The indented blocks, Python apart (test_readme.py runs that)."""
    text = re.sub(r"```.*?```", "", (ROOT / readme).read_text(), flags=re.DOTALL)
    found = re.findall(r"^(?:    .*\n)+", text, re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in found]


@pytest.fixture
def shop(tmp_path: Path) -> dict[str, str]:
    """The environment of a session: stand-ins first, and a checkout without results in `work`."""
    work, bin_, has = tmp_path / "work", tmp_path / "bin", tmp_path / "has"
    for folder in (work, bin_, has, tmp_path / "results" / "svm" / "figures"):
        folder.mkdir(parents=True)
    for path in ROOT.iterdir():
        if path.name not in ("results", ".venv", "data") and not path.name.startswith(".git"):
            (work / path.name).symlink_to(path)
    (work / ".venv" / "bin").mkdir(parents=True)
    (work / ".venv" / "bin" / "activate").touch()
    (work / "hosts").write_text("node1 slots=1\nnode2 slots=1\n")  # as docs/clusters.md says
    (tmp_path / "results" / "svm" / "journal.jsonl").write_text(FETCHED)
    (tmp_path / "state.json").write_text(json.dumps({**cloud.NEW, "services": [], "images": []}))
    for name in commands.COMMANDS:
        (bin_ / name).write_text(SCRIPT.format(python=sys.executable, module=commands.__file__, name=name))
        (bin_ / name).chmod(0o755)
    if (kubectl := shutil.which("kubectl")) is None:
        pytest.skip("no kubectl")
    return {
        **os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "REAL_PATH": os.environ["PATH"], "HAS": str(has),
        "CLOUD": str(tmp_path), "KUSTOMIZE": kubectl, "POLL": "0.05", "FAIL": "", "HANG": "", "TIMES": "",
        "ENDS": "Complete", "KEEP_DISKS": "",
    }  # fmt: skip


def session(found: list[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    numbered = [f'echo "block {n}" >&2\n{block}' for n, block in enumerate(found)]
    script = "set -eo pipefail\n" + "\n".join(numbered).replace(" && ", "\n")  # bash forgives what fails before &&
    work = Path(environ["CLOUD"], "work")
    options = {"cwd": work, "env": environ, "capture_output": True, "text": True}
    return subprocess.run(["bash", "-c", script], **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("readme", READMES)
def test_blocks_work_in_their_order(readme: str, shop: dict[str, str]) -> None:
    found = [block for block in blocks(readme) if not block.startswith("apiVersion:")]
    assert found
    done = session(found, shop)
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
    if readme.startswith("k8s"):
        state = json.loads(Path(shop["CLOUD"], "state.json").read_text())
        assert state["cluster"] is None and state["jobs"]["svm"][0] == 1


@pytest.mark.slow
def test_a_block_that_cannot_work_fails(shop: dict[str, str]) -> None:
    """Each is one that a README has had, or nearly."""
    for block, says in (
        ("kubectl apply -k k8s/overlays/indexed-job", "ErrImagePull search"),
        ("kubectl apply -k k8s/overlays/svm", 'no matches for kind "MPIJob"'),
        ("docker build -f k8s/Containerfile --target cpu -t x:cpu .\ndocker push x:cpu", "denied"),
        ("kind create cluster\nkind load docker-image search:cpu", "no image search:cpu"),
        ("python -m mnist_svm --fold 24", "--fold"),
        ("apptainer run --nv cu12.sif -m mnist_svm 24", "there is no image cu12.sif"),
        ("python -m mpitune status results/mnist_nn", "results/mnist_nn holds no study"),
    ):
        done = session([block], shop)
        assert done.returncode and says in done.stderr, done.stderr


def test_the_kustomization_of_the_readme_builds() -> None:
    (text,) = (block for block in blocks("k8s/README.md") if block.startswith("apiVersion:"))
    if (kubectl := shutil.which("kubectl")) is None:
        pytest.skip("no kubectl")
    folder = ROOT / "k8s" / "overlays" / f".test-readme-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "kustomization.yaml").write_text(text)
        done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True)
    finally:
        shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    for words in ("replicas: 6", "mnist_nn 100 50", "REGISTRY/search:gpu", "1g.5gb", "queue-name: searches"):
        assert words in done.stdout, words
