"""Functions compiled by numba, their machine code kept on disk."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jit.private import library_folder


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """`numba.njit(nogil=True, **options)`, kept on disk in a folder of this user alone.

    What is kept contains whatever the function calls, but numba looks for changes in the function's own file only. So
    it is kept under a name that depends on the files of its folder that compile something, and on this folder: after an
    update nothing old is run. Constants must come from such files, too.
    """
    import numba

    function.__qualname__ += "_" + _digest(Path(function.__code__.co_filename).parent)
    try:
        numba.config.CACHE_DIR = str(_folder())
        return numba.njit(cache=True, nogil=True, **options)(function)
    except (OSError, RuntimeError):  # no folder can be written
        return numba.njit(nogil=True, **options)(function)


@functools.cache
def _folder() -> Path:
    return library_folder("NUMBA_CACHE_DIR")


@functools.cache
def _digest(folder: Path) -> str:
    """A digest of the Python files in a folder that compile something, and of all in this one."""
    own = Path(__file__).parent
    contents = [path.read_bytes() for path in sorted(folder.glob("*.py"))]
    compiling = [
        content for content in contents if any(word in content for word in (b"compiled", b"njit", b"intrinsic"))
    ]
    return hashlib.sha256(b"".join(compiling + [path.read_bytes() for path in sorted(own.glob("*.py"))])).hexdigest()[
        :12
    ]
