"""python -m mpitune script.py ARGS, or -m module ARGS: somebody's script, whose calls by joblib are made on all nodes.

Under mpirun or srun rank 0 runs the script, and the others make its calls, so it prints and writes once. With
`--sklearn` GridSearchCV, RandomizedSearchCV, their halving relatives and SVC mean this package's while it runs.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import os
import runpy
import sys
import types
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mpitune.errors import Exit, UsageError, named
from mpitune.options import RunOptions, of_script
from mpitune.processes.output import outliving
from mpitune.processes.process import of_this_process
from mpitune.ranks.launch import hide, launched
from mpitune.settings import Parser

PROGRAM = "python -m mpitune"
FOR_STUDIES = "window", "workers", "gpu", "results", "restart", "join", "worker_folders"
RUNPY = runpy.run_path.__code__.co_filename


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script that the command line names, on rank 0; the other ranks take part in what it asks for.

    Returns its exit status.
    """
    parser = Parser(prog=PROGRAM, description="Run a script whose calls by joblib are made on all nodes.")
    parser.add_argument("--sklearn", action="store_true", help="use this package's searches and SVC for scikit-learn's")
    parser.add_argument("--window", type=int, metavar="N", help="how many trials of a study may be open")
    parser.add_argument("--workers", type=int, metavar="N", help="workers of each node for a study")
    parser.add_argument("--gpu", help="devices of a study, as of a search")
    parser.add_argument("--results", type=Path, metavar="DIR", help="a folder that keeps a study")
    parser.add_argument("--restart", action="store_true", help="set aside what is there, and begin anew")
    parser.add_argument("--join", action="store_true", help="work on what is there beside other jobs that join it")
    parser.add_argument(
        "--worker-folders", type=Path, metavar="DIR", help="each worker works in a folder of its own here"
    )
    parser.add_argument("-m", action="store_true", dest="is_module", help="run a module or package, as by python -m")
    parser.add_argument("script", metavar="script.py", help="the script, unchanged, or the module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="its own arguments")
    try:
        options = parser.parse_args(arguments)
        program = _module(options.script) if options.is_module else _script(Path(options.script))
        given = {name: getattr(options, name) for name in FOR_STUDIES}
        given = {name: value for name, value in given.items() if value is not None and value is not False}
        if given.get("window", 1) < 1:
            raise UsageError(f"--window {options.window}: give a whole number of at least 1")
        if options.results is None and (alone := [f"--{name}" for name in ("restart", "join") if name in given]):
            raise UsageError(f"{alone[0]} is for a study in a folder: give --results DIR, too")
        cpus = {"gpu": "none"} if "workers" in given and "gpu" not in given else {}  # as `search` takes them
        RunOptions(**{name: value for name, value in given.items() if name != "window"} | cpus)  # which checks them
        # Here, as these take their time.
        import mpitune.joblib
        from mpitune.studies import dismiss, join, serve
        from mpitune.tools.doors import open_doors

        transport = join(RunOptions(heartbeat_timeout=0.0))
    except UsageError as error:
        if not launched().rank:  # the same on all ranks
            print(f"{parser.prog}: {error}", file=sys.stderr)
        return Exit.USAGE
    sys.argv = [options.script, *options.arguments]
    of_script.given, of_script.taken = given | cpus, set()
    if transport.rank:
        serve(transport)
        return Exit.DONE
    mpitune.joblib.begin(others_wait=transport.size > 1)
    hide()
    open_doors()

    @of_this_process
    def end() -> None:
        with outliving():
            dismiss(transport)

    if transport.size > 1:
        atexit.register(end)  # after the script's own threads, and what it does at exit
    if options.sklearn:
        _replace()
    try:
        return _run(program)
    finally:
        print(end="", flush=True)  # what the script has printed, if it can be written
        if idle := [f"--{name.replace('_', '-')}" for name in given if name not in of_script.taken]:
            print(f"{parser.prog}: nothing in {options.script} has used {named(idle)}", file=sys.stderr)
        of_script.given = {}


def _replace() -> None:
    """Let scikit-learn's names of searches and SVC mean this package's."""
    import sklearn.model_selection
    import sklearn.svm
    from sklearn.model_selection import _search, _search_successive_halving

    import mpitune.sklearn
    import mpitune.svm

    for home in (_search, _search_successive_halving):
        for name in mpitune.sklearn.__all__:
            if hasattr(home, name):
                replacement = getattr(mpitune.sklearn, name)
                setattr(sklearn.model_selection, name, replacement)
                setattr(home, name, replacement)
    sklearn.svm.SVC = mpitune.svm.SVC


def _main(folder: Path, **own: Any) -> types.ModuleType:
    """`__main__` before it is executed: this process finds modules and files as by python."""
    main = types.ModuleType("__main__")
    vars(main).update(__builtins__=__builtins__, **own)
    sys.modules["__main__"] = main  # from where cloudpickle takes its functions to the workers
    sys.path.insert(0, str(folder.resolve()))
    return main


def _script(path: Path) -> Callable[[], None]:
    """Raises UsageError."""
    try:
        # Its `__future__` is its own.
        code = compile(path.read_bytes(), os.path.abspath(path), "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"{path} cannot be run: {error}") from error
    return functools.partial(exec, code, vars(_main(path.parent, __file__=code.co_filename)))


def _module(name: str) -> Callable[[], None]:
    """A module by the name that `python -m` takes. Raises UsageError."""
    if not all(map(str.isidentifier, name.split("."))):
        raise UsageError(f"-m {name} is no name of a module: give one as for python -m, without .py")
    _main(Path())
    if find_spec(top := name.partition(".")[0]) is None:  # what is in a package is found by rank 0, which imports it
        raise UsageError(f"there is no module {top}: install it, or start where it is")
    run: Any = runpy
    return functools.partial(run._run_module_as_main, name)  # which is all of python -m


def _run(execute: Callable[[], None]) -> int:
    """Execute it as `__main__`, as python would, and return its exit status."""
    sys.excepthook = sys.__excepthook__  # not that which ends the other ranks: they are told
    try:
        execute()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return Exit.ERROR
    except UsageError as error:
        print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
        return Exit.USAGE
    except BaseException as error:
        inside = error.__traceback__
        while inside is not None and inside.tb_frame.f_code.co_filename in (__file__, RUNPY):
            inside = inside.tb_next
        sys.excepthook(type(error), error.with_traceback(inside), inside)
        if not isinstance(error, KeyboardInterrupt):
            return Exit.ERROR
        sys.excepthook = lambda *raised: None
        raise  # which ends Python by the signal
    return Exit.DONE
