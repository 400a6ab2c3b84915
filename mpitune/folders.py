"""Folders that are this user's alone, for what programs keep on disk: machine code and locks.

numba, Triton and CuPy run what they find in their caches. So a cache lies where no other user of the machine can have
put anything: in a folder that this user owns with mode 0700, below folders that nobody else can change.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER_NAME = "mpitune"
CACHES_OF = {  # variable that says where a library keeps things: our folder for it
    "NUMBA_CACHE_DIR": "numba",
    "MPLCONFIGDIR": "matplotlib",
    "TRITON_CACHE_DIR": "triton",
    "CUPY_CACHE_DIR": "cupy",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
}
FRESH, FRESH_LOCAL = "SEARCH_CACHE", "SEARCH_LOCAL"  # a fresh folder, for the processes that its maker starts

log = logging.getLogger(__name__)


def private_folder(local: bool = False) -> Path:
    """A folder of this user alone, the same for all processes that this one starts.

    It is in XDG_CACHE_HOME, else in the home, else in the folder for temporary files, else a fresh one that goes with
    this process. What exists there and is not this user's alone is refused, with a line on the log.

    Args:
        local: whether it has to be on this machine, as locks do: then it is in the folder for temporary files.

    Raises:
        OSError: if not even a fresh one can be made.
    """
    variable = FRESH_LOCAL if local else FRESH
    inherited = os.environ.get(variable, "")
    if inherited and not _flaw(Path(inherited), 0o077):
        return Path(inherited)
    temporary = Path(tempfile.gettempdir())
    candidates = [temporary / f"{FOLDER_NAME}-{os.getuid()}"]
    if not local:
        homes = [os.environ.get("XDG_CACHE_HOME", ""), os.path.join(os.path.expanduser("~"), ".cache")]
        candidates[:0] = [Path(home) / FOLDER_NAME for home in homes if os.path.isabs(home)]
    for chosen in candidates:
        if not (flaw := _flaw(chosen, 0o077)):
            return chosen
        _warn_once("%s is not used to keep compiled code or locks: %s", chosen, flaw)
    fresh = tempfile.mkdtemp(prefix=f"{FOLDER_NAME}-")
    atexit.register(shutil.rmtree, fresh, ignore_errors=True)
    os.environ[variable] = fresh
    return Path(fresh)


def set_cache_variables(variables: Iterable[str] = CACHES_OF) -> None:
    """Have libraries keep their things in private folders; where a variable names another folder, only if it is safe.

    To be called before they are imported, by our own programs only: processes that this one starts inherit it.

    Args:
        variables: of LIBRARIES, those to set.
    """
    for variable in variables:
        try:
            os.environ[variable] = str(library_folder(variable))
        except OSError:  # no folder can be made: libraries keep nothing, or in a place of their own
            os.environ.pop(variable, None)


@contextmanager
def safe_caches() -> Iterator[None]:
    """Processes that are started in this context run no machine code but of private folders. This one stays as it was.

    matplotlib is left alone: its user's settings are in the folder that it looks at, and no code.
    """
    with suppress(OSError):
        private_folder()  # a fresh one is for all that this process starts
    before = dict(os.environ)
    try:
        set_cache_variables(variable for variable in CACHES_OF if variable != "MPLCONFIGDIR")
        yield
    finally:
        for name in {name for name, value in os.environ.items() if before.get(name) != value}:
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if name not in os.environ})


def library_folder(variable: str) -> Path:
    """The folder of a library's machine code: the one that its variable names if that is safe, else a private one.

    Raises:
        OSError: if there is none.
    """
    named = os.environ.get(variable, "")
    if named:
        if not (flaw := why_unsafe(Path(named))):
            return Path(os.path.realpath(named))
        _warn_once("%s=%s is not used: %s", variable, named, flaw)
    folder = private_folder() / CACHES_OF[variable]
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@functools.cache
def _warn_once(message: str, *words: object) -> None:
    log.warning(message, *words)


def why_unsafe(folder: Path) -> str:
    """Why others could change files of a folder, "" if only this user can. A missing folder is made."""
    links, real = Path(os.path.abspath(folder)), Path(os.path.realpath(folder))
    return next(_unsafe(links), "") or _flaw(real, 0o022)


def _flaw(folder: Path, others: int) -> str:
    """Why this is no folder of this user that others cannot change, made now if it was not there; "" if it is.

    others: bits that its mode may not have.
    """
    for flaw in _unsafe(folder.parent):
        return flaw
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        return f"{error.strerror}"
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a folder"
    if status.st_uid != os.getuid():
        return f"it belongs to user {status.st_uid}, who could put code of his own there"
    if status.st_mode & others:
        return f"its mode is {stat.S_IMODE(status.st_mode):o}, so others could put code of their own there (chmod 700)"
    return "" if os.access(folder, os.W_OK | os.X_OK) else "it cannot be written"


def _unsafe(folder: Path) -> Iterator[str]:
    """Which folders or links on the way to this one another user could exchange; those not there yet are left out."""
    for path in (folder, Path(os.path.realpath(folder))):
        for part in [path, *path.parents]:
            try:
                status = os.lstat(part)
            except OSError:
                continue
            if status.st_uid not in (0, os.getuid()):
                yield f"{part} belongs to user {status.st_uid}, who could exchange what is in it"
            elif stat.S_ISLNK(status.st_mode) or status.st_mode & stat.S_ISVTX:
                continue  # nobody but the owner exchanges what is in a sticky folder
            elif status.st_mode & 0o002 or (status.st_uid and status.st_mode & 0o020):
                yield f"the mode of {part} is {stat.S_IMODE(status.st_mode):o}, so others could exchange what is in it"
