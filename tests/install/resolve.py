"""Which versions a requirements file resolves to, without installing them.

    python -m tests.install.resolve requirements-cu12.txt > requirements-pin-cu12.txt

prints the exact versions for this Python on this machine. uv reads metadata alone, so that this takes seconds; a dry
run of pip downloads some of the gigabytes.
"""

import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.helpers import ROOT

UV = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--no-header", "--no-annotate"]


class Unresolved(Exception):
    """uv's last lines: no versions fit together, or an index did not answer."""


def resolve(name: str, *options: str, python: str = "", text: str | None = None) -> Mapping[str, str]:
    """Name, in lower case with dashes, to version of all that a requirements file asks for.

    Args:
        name: File, relative to the repository's root; "-" for `text`.
        options: More options of `uv pip compile`.
        python: Another version of Python, such as "3.13", for which wheels are then looked up.
        text: Requirements in place of a file's.

    Raises:
        Unresolved: uv refused.
    """
    options += ("--python-version", python, "--only-binary", ":all:") if python else ()
    done = subprocess.run([*UV, name, *options], cwd=ROOT, input=text, capture_output=True, text=True)
    if done.returncode:
        raise Unresolved("\n".join(done.stderr.splitlines()[-12:]))
    return dict(re.findall(r"^(\S+)==(\S+)", done.stdout, re.MULTILINE))


@cache
def index_is_reachable() -> bool:
    """Whether the index answers; without it nothing here can be checked."""
    try:
        resolve("-", "--no-deps", text="rich>=13.7")
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
        resolve("-", "--no-deps", "--index-url", index, text=torch)
    except Unresolved:
        return False
    return True


def main(name: str) -> None:
    print(f"# The exact versions of {name}, for Python {sys.version_info[0]}.{sys.version_info[1]} on Linux x86-64.")
    print(f"# Made by python -m tests.install.resolve {name}")
    for package, version in sorted(resolve(name).items()):
        print(f"{package}=={version}")


if __name__ == "__main__":
    main(sys.argv[1])
