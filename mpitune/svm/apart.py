"""Whether the solver is compiled, and its compilation by a process that nobody waits for, without numba in this one."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import sys
from contextlib import suppress
from pathlib import Path

from mpitune._jit.cache import digest_of
from mpitune.folders import library_folder, private_folder
from mpitune.locks import open_lock, try_lock

STARTED = "warm-up.lock"  # of the process that was started for it
LATER = 2.0  # seconds: a search that ends before needs no solver, and its script the processor
NAMES = ("model name", "flags", "CPU implementer", "CPU part", "Features")  # lines that say what a processor can do


def is_compiled(*, unkept: bool = True) -> bool:
    """Whether all has been compiled, by these versions and for this processor; `unkept` where it cannot be kept."""
    try:
        return proof().exists()
    except OSError:  # no folder can be written
        return unkept


def is_ready() -> bool:
    """Whether everything has been compiled. If not, a process is begun that does it, unless one is at it."""
    if not (compiled := is_compiled()):
        compile_apart()
    return compiled


@functools.cache
def proof() -> Path:
    """A file that is there when everything has been compiled. Raises OSError where no folder can be written."""
    words = [importlib.metadata.version("numba"), os.environ.get("NUMBA_CPU_NAME", ""), digest_of(__file__)]
    words += [os.environ.get("NUMBA_CPU_FEATURES", ""), __file__, str(os.path.getmtime(__file__))]  # as numba has them
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        words += dict.fromkeys(line for line in lines if line.startswith(NAMES))  # several processors say the same
    digest = hashlib.sha256("\n".join(words).encode()).hexdigest()
    return library_folder("NUMBA_CACHE_DIR") / f"solver-{digest[:16]}.compiled"


@functools.cache
def compile_apart() -> None:
    """Have everything compiled by a process of its own, unless one of this node and user is at it.

    Nobody waits for it, and it may outlive this one. It has the lock, so that nobody begins another.
    """
    with suppress(OSError), open(open_lock(private_folder(local=True) / STARTED)) as lock:
        if try_lock(lock.fileno()):
            os.set_inheritable(lock.fileno(), True)
            start()


def start() -> None:
    """Compile in a process of a session of its own, in a while."""
    # This process's folders come last, so no file beside a script stands for a module of Python or of a library.
    folders = list(map(os.path.abspath, sys.path))
    code = f"""if True:
        import sys, time
        time.sleep({LATER})
        sys.path += {folders!r}
        from mpitune.svm import compiling
        compiling.give_way()"""
    silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    os.posix_spawn(sys.executable, [sys.executable, "-P", "-c", code], os.environ, file_actions=silent, setsid=True)
