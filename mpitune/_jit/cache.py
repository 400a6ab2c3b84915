"""Functions compiled by numba, their machine code kept on disk."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpitune.folders import library_folder

_OPTIONS = {"nogil": True, "no_cfunc_wrapper": True, "no_rewrites": True}  # all else takes longer to compile


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """A function that Python calls, compiled by numba without the GIL, kept on disk in a folder of this user alone.

    What is kept contains the functions that a function calls, but numba looks for changes in its own file only. So it
    is kept under a name that depends on the files of its package that compile something, and on this folder: after an
    update nothing old is run. Constants must come from such files, too.
    """
    import numba

    function.__qualname__ = f"{function.__name__}_{digest_of(function.__code__.co_filename)}"
    whole = numba.njit(**_OPTIONS, **options)(function)
    users = numba.config.CACHE_DIR  # of functions that the user compiles in this process
    try:
        numba.config.CACHE_DIR = str(_folder())
        whole.enable_caching()
    except (OSError, RuntimeError):  # no folder can be written
        pass
    finally:
        numba.config.CACHE_DIR = users
    return whole


def part(function: Callable[..., Any], **options: Any) -> Any:
    """A function that functions of `compiled` call, and Python does not. It is kept on disk with them."""
    import numba

    return numba.njit(**_OPTIONS, no_cpython_wrapper=True, **options)(function)


def digest_of(file: str) -> str:
    """A digest of all code that the machine code of functions of this file comes from."""
    return _digest(_package(Path(file).parent))


@functools.cache
def _folder() -> Path:
    return library_folder("NUMBA_CACHE_DIR")


def _package(folder: Path) -> Path:
    """The room right below `mpitune` that a folder is part of, as `svm` for all of its rooms; else the folder."""
    whole = Path(__file__).parents[1]
    inside = folder.relative_to(whole).parts if folder.is_relative_to(whole) else ()
    return whole / inside[0] if inside else folder


@functools.cache
def _digest(folder: Path) -> str:
    """A digest of the Python files below a folder that compile something, and of all in this one."""
    own = Path(__file__).parent
    inside = folder.is_relative_to(own.parent)
    contents = [path.read_bytes() for path in sorted(folder.rglob("*.py") if inside else folder.glob("*.py"))]
    compiling = [content for content in contents if any(word in content for word in (b"mpitune._jit", b"numba"))]
    every = b"".join(compiling + [path.read_bytes() for path in sorted(own.glob("*.py"))])
    return hashlib.sha256(every).hexdigest()[:12]
