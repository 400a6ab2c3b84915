"""What of the images can be checked without building them."""

import re

from tests.helpers import ROOT
from tests.install.rooms import rooms


def test_all_that_is_copied_is_there_and_all_packages_are_copied() -> None:
    text, ignore = ((ROOT / "k8s" / name).read_text() for name in ("Containerfile", "Containerfile.dockerignore"))
    sent = [line[1:] for line in ignore.splitlines() if line[:1] == "!"]
    parts = re.split(r"^FROM .* AS (\w+)$", text, flags=re.MULTILINE)
    assert parts[1::2] == ["common", "gpu", "cpu"]
    for name, stage in zip(parts[1::2], parts[2::2], strict=True):
        copies = re.findall(r"^COPY (.+) \S+$", stage, re.MULTILINE)
        assert all(list(ROOT.glob(pattern)) and pattern in sent for pattern in copies), copies
        assert name == "common" or (rooms() <= set(copies) and stage.rstrip().endswith("USER 1000:1000"))
    assert all((ROOT / name.replace("${CUDA}", "12")).exists() for name in re.findall(r"-r (\S+)", text))
