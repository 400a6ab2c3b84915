"""The packages that a wheel holds, and those that an image must hold."""

import tomllib
from functools import cache

from tests.helpers import ROOT

PROGRAMS = {"common", "mnist_nn", "mnist_svm"}  # they run from a checkout or an image, and are in no wheel


@cache
def wheel_rooms() -> set[str]:
    """The folders that pyproject.toml names and that exist."""
    include = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    return {path.parent.name for pattern in include for path in ROOT.glob(f"{pattern}/__init__.py")}


@cache
def rooms() -> set[str]:
    """The folders of an image."""
    return wheel_rooms() | PROGRAMS
