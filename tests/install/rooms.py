"""The packages that an installation or an image must hold."""

import tomllib
from functools import cache

from tests.helpers import ROOT


@cache
def rooms() -> set[str]:
    """The folders that pyproject.toml names and that exist."""
    include = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    return {path.parent.name for pattern in include for path in ROOT.glob(f"{pattern}/__init__.py")}
