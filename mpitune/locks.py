"""Locks of files: they end with the process that holds them, and a file system may have none."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LONGEST_S = 900.0  # for a lock: a process that holds it for longer is suspended, or its node has gone

log = logging.getLogger(__name__)


class NoLocks(OSError):
    """The file system has no locks."""


def try_lock(file: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Whether the lock of an open file was to be had at once. Raises NoLocks."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
            raise NoLocks(error.errno, error.strerror) from error
        raise
    return True


@contextmanager
def locked(path: Path, seconds: float = LONGEST_S) -> Iterator[None]:
    """Hold the lock of a file, which is made if need be and never written, for the time of the context.

    The file stays, for those who wait at it. A link is not followed. These locks save work that several would do, so
    none is waited for in vain: the context begins without it where there are none, and after so many seconds.

    Raises:
        OSError: if it cannot be opened.
    """
    file, end, pause = open_lock(path), time.monotonic() + seconds, 0.001
    try:
        with suppress(NoLocks):
            while not try_lock(file):
                if time.monotonic() > end:
                    log.warning("%s has been locked for %g s: not waited for any longer", path, seconds)
                    break
                time.sleep(pause)
                pause = min(2 * pause, 0.2)
        yield
    finally:
        os.close(file)


def open_lock(path: Path) -> int:
    """A descriptor of a lock file: new with mode 0600, nothing truncated, no link followed. Raises OSError."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def lock_byte(file: int, byte: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock a byte of a file against other processes; with LOCK_NB in `kind`, False where one prevents it."""
    try:
        fcntl.lockf(file, kind, 1, byte)
    except BlockingIOError:
        return False
    return True


def unlock_byte(file: int, byte: int) -> None:
    """Give the lock of a byte back."""
    fcntl.lockf(file, fcntl.LOCK_UN, 1, byte)


@contextmanager
def locked_byte(file: int, byte: int) -> Iterator[None]:
    """Hold the lock of a byte for the time of the context."""
    lock_byte(file, byte)
    try:
        yield
    finally:
        unlock_byte(file, byte)
