"""What pip would install, without installing it.

    python -m tests.install.resolve requirements-cu12.txt > requirements-pin-cu12.txt

prints the exact versions that a requirements file resolves to now, for this Python on this machine.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.helpers import ROOT

MORE = ["--dry-run", "--ignore-installed", "--quiet", "--disable-pip-version-check"]


class Unresolved(Exception):
    """pip's last lines: no versions fit together, or an index did not answer."""


def resolve(*arguments: str, python: str = "") -> Mapping[str, str]:
    """Name, in lower case with dashes, to version of all that `pip install ARGUMENTS` would install.

    Args:
        arguments: Of `pip install`, such as "-r", "requirements.txt"; relative to the repository's root.
        python: Another version of Python, such as "3.13", for which wheels are then looked up.

    Raises:
        Unresolved: pip refused.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", *MORE, "--report", str(report), *arguments]
        if python:
            command += ["--python-version", python, "--only-binary=:all:", "--target", folder]
        # pip unpacks gigabytes even in a dry run; they go with this folder if pip is killed.
        environ = {**os.environ, "TMPDIR": folder}
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
        if done.returncode:
            raise Unresolved("\n".join(done.stderr.splitlines()[-12:]))
        found = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    return {one["name"].lower().replace("_", "-"): one["version"] for one in found}


@cache
def index_is_reachable() -> bool:
    """Whether pip's index answers; without it nothing here can be checked."""
    try:
        resolve("--no-deps", "rich>=13.7")
    except Unresolved:
        return False
    return True


@cache
def cuda_11_is_reachable() -> bool:
    """Whether the index of PyTorch for CUDA 11 answers, which PyPI does not replace."""
    text = (ROOT / "requirements-cu11.txt").read_text()
    (index,) = re.findall(r"^--extra-index-url (\S+)", text, re.MULTILINE)
    (torch,) = re.findall(r"^torch==\S+", text, re.MULTILINE)
    try:
        resolve("--no-deps", "--retries", "0", "--index-url", index, torch)
    except Unresolved:
        return False
    return True


def main(name: str) -> None:
    print(f"# The exact versions of {name}, for Python {sys.version_info[0]}.{sys.version_info[1]} on Linux x86-64.")
    print(f"# Made by python -m tests.install.resolve {name}")
    for package, version in sorted(resolve("-r", name).items()):
        print(f"{package}=={version}")


if __name__ == "__main__":
    main(sys.argv[1])
