"""Definition files of Apptainer: their shell is sound, and all packages are copied."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.install.rooms import rooms

FOLDER = ROOT / "apptainer"


def sections(path: Path) -> dict[str, str]:
    """The sections of a definition, unindented, with the defaults of its arguments filled in."""
    _, *parts = re.split(r"^%(\w+)\n", path.read_text(), flags=re.MULTILINE)
    texts = [re.sub("^    ", "", text, flags=re.MULTILINE) for text in parts[1::2]]
    found = dict(zip(parts[::2], texts, strict=True))
    values = dict(line.split("=", 1) for line in found["arguments"].split())
    return {name: re.sub(r"{{\s*(\w+)\s*}}", lambda at: values[at[1]], text) for name, text in found.items()}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.def")), ids=lambda path: path.stem)
def test_the_shell_of_a_definition_is_sound_and_all_packages_are_copied(path: Path) -> None:
    """tests/k8s has shellcheck of the build script."""
    for name in ("environment", "post", "runscript", "test"):
        script = sections(path)[name]
        checks = [["sh", "-n"]]
        if shutil.which("shellcheck"):
            checks.append(["shellcheck", "--shell", "sh", "--exclude", "SC2155", "-"])
        for check in checks:
            done = subprocess.run(check, input="set -e\n" + script, capture_output=True, text=True)
            assert done.returncode == 0, f"%{name}\n{done.stdout}{done.stderr}"
    assert rooms() <= {line.split()[0] for line in sections(path)["files"].splitlines() if line}
