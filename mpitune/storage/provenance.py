"""The origin of a result: code, library versions, data. For journal headers and tables of benchmarks."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np

_LIBRARIES = ("numpy", "scikit-learn", "numba", "torch", "torchvision", "cuml-cu11", "cuml-cu12", "cuml-cu13", "mpi4py")


def versions(libraries: tuple[str, ...] = _LIBRARIES) -> dict[str, str]:
    """Versions of Python and of those libraries that are installed, without importing them."""
    from importlib.metadata import PackageNotFoundError, version  # slow; no worker needs it

    installed = {"python": platform.python_version()}
    for name in libraries:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def code_and_libraries(*modules: str) -> dict[str, str]:
    """Versions of all that results depend on: our own code and that of these modules, Python and libraries."""
    return {"code": fingerprint("mpitune", *modules), **versions()}


def fingerprint(*modules: str) -> str:
    """Eight hexadecimal digits that differ where the source code does.

    Args:
        modules: Names of modules; none is imported for this. Each stands for its whole package, or for its file where
            it has none. One that is not there counts nothing.
    """
    total = hashlib.sha256()
    for name in dict.fromkeys(module.partition(".")[0] for module in modules):
        top = sys.modules.get(name) or find_spec(name)
        file = Path(getattr(top, "__file__", None) or getattr(top, "origin", None) or ".")
        whole = sorted(file.parent.rglob("*.py"))
        for path in whole if file.name == "__init__.py" else [file]:
            if path.is_file():
                total.update(f"{path.relative_to(file.parent)}\n".encode() + path.read_bytes())
    return total.hexdigest()[:8]


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names, shapes, types and contents."""
    total = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        total.update(f"{name} {array.shape} {array.dtype.str}\n".encode())
        total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return total.hexdigest()
