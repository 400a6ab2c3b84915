"""python -m mpitune accelerate script.py ARGS: somebody's scikit-learn script, unchanged, on all devices.

As `python -m mpitune script.py`. Besides, GridSearchCV, RandomizedSearchCV, their halving relatives and SVC mean this
package's while it runs.
"""

from __future__ import annotations

import types
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mpitune.processes.output import outliving
from mpitune.settings import Parser
from mpitune.tools.script import Around, run_script

PROGRAM = "python -m mpitune accelerate"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script that the command line names; returns its exit status."""
    parser = Parser(prog=PROGRAM, description="Run a scikit-learn script with this package's searches and SVC.")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not say at the end what was replaced")
    return run_script(parser, arguments, _replacing)


def _replacing(options: Namespace) -> Around:
    @contextmanager
    def around(code: types.CodeType) -> Iterator[None]:
        from mpitune.tools.replaced import Replaced

        replaced = Replaced()
        try:
            yield
        finally:
            if not options.quiet:
                with outliving():
                    replaced.report(code)

    return around
