"""`python -m mpitune data`: the images of the programs mnist_svm and mnist_nn, which run from a checkout."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from mpitune.errors import UsageError, print_error
from mpitune.exchange.programs import checkout

PROG = "python -m mpitune data"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line, which is that of `common.data`. Returns the exit status."""
    root = checkout()
    if root is None:
        problem = (
            "the images are for mnist_svm and mnist_nn, which are not installed with mpitune: run it in a checkout"
        )
        return print_error(PROG, UsageError(problem))
    sys.path.insert(0, str(root))  # a package of that name elsewhere is somebody else's
    return int(import_module("common.data").main(arguments))
