"""What an export needs beside this package, and the message where it is absent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mpitune.errors import UsageError


@contextmanager
def needs(name: str) -> Iterator[None]:
    """Around the import of an optional package. Raises UsageError, which names the extra, where it is not installed."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f'{name} is not installed ({error}): pip install "mpitune[export]"') from error
