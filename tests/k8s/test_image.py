"""What of the images can be checked without building them."""

import re

from tests.helpers import ROOT
from tests.install.rooms import rooms
from tests.k8s.manifests import K8S

CONTAINERFILE = (K8S / "Containerfile").read_text()


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
