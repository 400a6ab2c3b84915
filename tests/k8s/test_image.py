"""What of the images can be checked without building them."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.install.rooms import rooms
from tests.k8s.manifests import K8S

CONTAINERFILE = (K8S / "Containerfile").read_text()


def image_environment() -> dict[str, str]:
    """ENV of the Containerfile."""
    lines = re.findall(r"^ENV ((?:.*\\\n)*.*)", CONTAINERFILE, re.MULTILINE)
    words = shlex.split(" ".join(lines).replace("\\\n", " "))
    return dict(word.split("=", 1) for word in words)


def test_all_that_is_copied_is_there_and_all_packages_are_copied() -> None:
    sent = [line[1:] for line in (K8S / "Containerfile.dockerignore").read_text().splitlines() if line[:1] == "!"]
    parts = re.split(r"^FROM .* AS (\w+)$", CONTAINERFILE, flags=re.MULTILINE)
    stages = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert set(stages) == {"common", "gpu", "cpu"}
    for name, stage in stages.items():
        copies = re.findall(r"^COPY (.+) \S+$", stage, re.MULTILINE)
        for pattern in copies:
            assert list(ROOT.glob(pattern)) and pattern in sent, pattern
        if name != "common":
            assert rooms() <= set(copies) and stage.rstrip().endswith("USER 1000:1000")
    for requirements in re.findall(r"-r (\S+)", CONTAINERFILE):
        assert (ROOT / requirements.replace("${CUDA}", "12")).exists()


def test_a_session_of_sshd_has_the_environment_of_the_image() -> None:
    (line,) = re.findall(r"^SetEnv (.*)", Path(K8S / "sshd_config").read_text(), re.MULTILINE)
    session = dict(word.split("=", 1) for word in shlex.split(line))
    image = image_environment()
    assert set(session) == set(image)
    assert [folder for folder in image.pop("PATH").split(":") if "sbin" not in folder] == session.pop("PATH").split(":")
    assert session == image


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
