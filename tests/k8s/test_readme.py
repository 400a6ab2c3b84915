"""What k8s/README.md names is there. Its blocks are parsed by tests/test_readme_blocks.py."""

import re

import pytest

from tests.helpers import ROOT
from tests.k8s.manifests import K8S, overlay

README = (K8S / "README.md").read_text()


def test_every_overlay_and_file_that_is_named_is_there() -> None:
    for path in re.findall(r"\b(k8s/(?:overlays|components|base)[\w./-]*)", README):
        assert (ROOT / path.rstrip(".")).exists(), path
    tables = README.split("## What there is")[1].split("\n\n")[1:3]
    for kind, table in zip(("overlays", "components"), tables, strict=True):
        named = {name for row in table.splitlines() for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}
        assert named == {path.name for path in (K8S / kind).iterdir() if not path.name.startswith(".")}


@pytest.mark.parametrize("words", sorted(set(re.findall(r"k8s/show\.sh ([a-z1-9 -]+?) *(?:\\?\||>|`)", README))))
def test_every_combination_that_is_named_builds(words: str) -> None:
    assert overlay(words)
