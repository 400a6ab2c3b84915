"""What the shell blocks of READMEs and docs call is there: programs with their options, make targets, files."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess

import pytest

from tests.helpers import ROOT
from tests.programs import EXPERIMENTS, OTHERS, accepted

PAGES = ("README.md", "k8s/README.md", "slurm/README.md", "apptainer/README.md", *sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")
))  # fmt: skip
PARSED = {*EXPERIMENTS, *OTHERS}
FILES = r"\b(?:k8s|slurm|apptainer|requirements|docs|examples|benchmarks)[\w-]*(?:/[\w.-]+|\.txt)+"


def blocks(page: str) -> list[str]:
    """The indented blocks, Python apart (test_readme.py runs that)."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    found = re.findall(r"^(?:    .*\n)+", text, re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE).replace("\\\n", " ") for block in found]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_calls_is_there(page: str) -> None:
    text = "\n".join(blocks(page))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([\w-]+)", text, re.MULTILINE)) <= targets
    for name in set(re.findall(FILES, re.sub(r"\S+://\S+", "", text))):
        assert (ROOT / name).exists(), name
    for module, rest in re.findall(r"-m ((?:mpitune|mnist|benchmarks|tests)\S*)([^#;|&>)\n]*)", text):
        words = shlex.split(rest)
        program = f"{module} {words.pop(0)}" if module == "mpitune" else module
        if program.endswith((".py", " --sklearn", " -m")):  # a script or module of the reader's own
            continue
        if program in PARSED:
            accepted(program, words)  # raises UsageError for what it would not take
        else:
            assert (ROOT / program.replace("mpitune ", "mpitune/tools/").replace(".", "/")).with_suffix(".py").exists()


def test_the_kustomization_of_the_readme_builds() -> None:
    (text,) = (block for block in blocks("k8s/README.md") if block.startswith("apiVersion:"))
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    folder = ROOT / "k8s" / "overlays" / f".test-readme-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "kustomization.yaml").write_text(text)
        environ = {**os.environ, "IMAGE": "REGISTRY/search:gpu"}
        done = subprocess.run([ROOT / "k8s" / "show.sh", folder.name], capture_output=True, text=True, env=environ)
    finally:
        shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    for words in ("replicas: 6", "mnist_nn 100 50", "REGISTRY/search:gpu", "1g.5gb", "queue-name: searches"):
        assert words in done.stdout, words
