"""Mutants: do the fast tests of a file notice when one thing in it is changed?

    python -m tests.mutants common/engine/study.py tests/common/engine/test_study.py [pytest's arguments]

Each mutant is run in a forked process that has the libraries loaded already, and changes nothing on disk. What is
printed at the end are the survivors: changes that no test minds. Tests that start programs see the file as it is.
"""

import ast
import copy
import importlib.util
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rooms import PACKAGES

OPTIONS = ("-x", "-o", "addopts=--import-mode=importlib", "-p", "no:cacheprovider", "-p", "no:xdist")
CPU_S, WAIT_S = 10, 120  # seconds of computing, and in all: a mutant that never ends is noticed, too
SWAPPED: dict[type, type] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip
STATEMENTS = (ast.Expr, ast.Raise, ast.Continue, ast.Break, ast.Return, ast.AugAssign)


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """What a node may be changed to. Texts and the log are left alone."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        yield ast.Compare(node.left, [SWAPPED[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPPED:
        yield ast.BinOp(node.left, SWAPPED[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(SWAPPED[type(node.op)](), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        yield ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield type(node)(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.Return) and node.value is not None:
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, STATEMENTS) and not ast.unparse(node).startswith(("log.", "'", '"')):
        yield ast.Pass()


def mutants(tree: ast.Module) -> Iterator[tuple[int, str, str, ast.Module]]:
    """(line, what was there, what is there now, the changed module)."""
    for number, node in enumerate(ast.walk(tree)):
        for new in replacements(node):
            changed = copy.deepcopy(tree)
            old = next(one for n, one in enumerate(ast.walk(changed)) if n == number)
            for parent in ast.walk(changed):
                for name, value in ast.iter_fields(parent):
                    if value is old:
                        setattr(parent, name, copy.deepcopy(new))
                    elif isinstance(value, list):
                        setattr(parent, name, [copy.deepcopy(new) if one is old else one for one in value])
            line = getattr(node, "lineno", 0)
            yield line, ast.unparse(node)[:90], ast.unparse(new)[:90], ast.fix_missing_locations(changed)


def survives(path: Path, tree: ast.Module, tests: list[str]) -> bool:
    """Whether the tests pass with that module in the place of the file."""
    if (child := os.fork()) == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        signal.alarm(WAIT_S)
        used = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used + CPU_S, used + CPU_S))
        name = ".".join(path.with_suffix("").parts)

        class Loader:
            def find_spec(self, wanted: str, *_: object) -> object:
                found = importlib.util.spec_from_file_location(wanted, path.resolve(), loader=self)  # type: ignore[arg-type]
                return found if wanted == name else None

            def create_module(self, spec: object) -> None:
                return None

            def exec_module(self, module: object) -> None:
                exec(compile(tree, str(path), "exec"), module.__dict__)

        sys.meta_path.insert(0, Loader())  # type: ignore[arg-type]
        os._exit(pytest.main([*OPTIONS, *tests]))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main(file: str, *tests: str) -> None:
    path, survivors, n, start = Path(file), 0, 0, time.monotonic()
    tree = ast.parse(path.read_text())
    pytest.main([*OPTIONS, "--collect-only", "-qq", *tests])  # loads the libraries
    for name in [name for name in sys.modules if name.split(".")[0] in (*PACKAGES, "tests")]:
        del sys.modules[name]
    assert survives(path, tree, list(tests)), "the tests fail without a mutant"
    for line, old, new, changed in mutants(tree):
        n += 1
        if survives(path, changed, list(tests)):
            survivors += 1
            print(f"{file}:{line}: {old!r} -> {new!r}", flush=True)
    print(f"{file}: {n} mutants, {survivors} survived, {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
