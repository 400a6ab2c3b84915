"""What k8s/README.md names is there. Its blocks are run by tests/test_readme_blocks.py."""

import re

from tests.helpers import ROOT
from tests.k8s.manifests import K8S

README = (K8S / "README.md").read_text()


def test_every_overlay_and_file_that_is_named_is_there() -> None:
    for path in re.findall(r"\b(k8s/(?:overlays|components|storage|base)[\w./-]*)", README):
        assert (ROOT / path.rstrip(".")).exists(), path
    table = README.split("## What there is")[1].split("\n\n")[1]
    named = set(re.findall(r"`(?:overlays/)?([\w.-]+)`", table))
    there = {path.name for path in (K8S / "overlays").iterdir() if not path.name.startswith(".")}
    assert there <= named, there - named
