"""What of the image can be checked without building it."""

import re
import shlex
from pathlib import Path

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
