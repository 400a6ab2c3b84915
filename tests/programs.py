"""Our own programs, as far as their parsers: whether they would take a command line.

python -m tests.programs PROGRAM ARGUMENTS...     prints the folder of the results, for a program that has one;
                                                  a tool is one word here, as in "mpitune status"
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mnist_nn.experiment import Bagging
from mnist_nn.parallel.settings import Settings
from mnist_nn.predict import Predict
from mnist_svm.experiment import SvmGrid
from mpitune.cli import parser_of
from mpitune.errors import UsageError
from mpitune.options import RunOptions
from mpitune.settings import Parser, add_settings, from_namespace
from mpitune.tools.status import StatusOptions

EXPERIMENTS = {"mnist_svm": SvmGrid, "mnist_nn": Bagging}
OTHERS = {
    "mpitune doctor": (RunOptions,),
    "mpitune status": (StatusOptions,),
    "mnist_nn.ddp": (Settings,),
    "mnist_nn.predict": (Predict,),
}


def accepted(program: str, arguments: Sequence[str]) -> RunOptions | None:
    """Parses a command line as `python -m program` would. Raises UsageError for what it would not take.

    Returns the options of the run, for a program that has such.
    """
    if program in EXPERIMENTS:
        kinds: tuple[type, ...] = (EXPERIMENTS[program], RunOptions)
        parser = parser_of(EXPERIMENTS[program], program)
    else:
        kinds = OTHERS[program]
        parser = Parser(prog=program)
        for kind in kinds:
            add_settings(parser, kind)
    namespace = parser.parse_args(arguments)
    made = [from_namespace(kind, namespace) for kind in kinds]
    return next((one for one in made if isinstance(one, RunOptions)), None)


if __name__ == "__main__":
    program, *words = sys.argv[1:]
    try:
        options = accepted(program, words)
    except UsageError as error:
        raise SystemExit(f"{program}: {error}") from None
    if program in EXPERIMENTS:
        print((options and options.results) or f"results/{program}")
