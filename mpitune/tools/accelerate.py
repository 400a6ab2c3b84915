"""python -m mpitune accelerate script.py ARGS: somebody's scikit-learn script, unchanged, on all devices.

GridSearchCV, RandomizedSearchCV, their halving relatives and SVC mean this package's while it runs. Under mpirun or
srun rank 0 runs the script and the others take part in its searches, so it prints and writes once.
"""

from __future__ import annotations

import argparse
import sys
import traceback
import types
from collections.abc import Sequence
from pathlib import Path

from mpitune.engine.options import RunOptions
from mpitune.errors import Exit, UsageError
from mpitune.output import outliving
from mpitune.settings import Parser

PROGRAM = "python -m mpitune accelerate"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script that the command line names; returns its exit status."""
    parser = Parser(prog=PROGRAM, description="Run a scikit-learn script with this package's searches and SVC.")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not say at the end what was replaced")
    parser.add_argument("script", type=Path, metavar="script.py", help="the script, unchanged")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="its own arguments")
    try:
        options = parser.parse_args(arguments)
        try:
            code = compile(options.script.read_bytes(), options.script, "exec")
        except (OSError, SyntaxError, ValueError) as error:
            raise UsageError(f"{options.script} cannot be run: {error}") from error
        # Here, as scikit-learn takes seconds to import.
        from mpitune.sklearn.searches import dismiss, serve
        from mpitune.studies import join
        from mpitune.tools.replaced import Replaced

        transport = join(RunOptions(heartbeat_timeout=0.0))
    except UsageError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return Exit.USAGE
    if transport.rank:
        serve(transport)
        return Exit.DONE
    replaced = Replaced()
    try:
        return _run(code, options.script, options.arguments)
    finally:
        try:
            print(end="", flush=True)  # what the script has printed, if it can be written
        finally:
            with outliving():
                if not options.quiet:
                    replaced.report(code)
                if transport.size > 1:
                    dismiss(transport)


def _run(code: types.CodeType, script: Path, arguments: list[str]) -> int:
    """Execute the script as `__main__`, as python would, and return its exit status."""
    main = types.ModuleType("__main__")
    vars(main).update(__file__=str(script), __builtins__=__builtins__)
    sys.modules["__main__"] = main  # from where cloudpickle takes its functions to the workers
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent.resolve()))
    try:
        exec(code, vars(main))
    except SystemExit as end:
        return _status(end)
    except UsageError as error:
        print(f"{script.name}: {error}", file=sys.stderr)
        return Exit.USAGE
    except Exception as error:
        inside = error.__traceback__.tb_next if error.__traceback__ else None  # without the frame of this file
        traceback.print_exception(error.with_traceback(inside))
        return Exit.ERROR
    return Exit.DONE


def _status(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return Exit.ERROR
