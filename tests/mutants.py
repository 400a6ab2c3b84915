"""Mutants: do the tests of a file notice when one thing in it is changed?

    python -m tests.mutants mpitune/engine/study.py tests/mpitune/engine/test_study.py [pytest's arguments]

Each mutant lies in a copy of the repository, so that programs which a test starts run it too. The tests themselves run
in a forked process that has the libraries loaded already, the quickest first. What is printed at the end are the
survivors: changes that no test minds.
"""

import ast
import copy
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.rooms import PACKAGES

OPTIONS = ("-x", "-o", "addopts=--import-mode=importlib", "-p", "no:cacheprovider", "-p", "no:xdist")
# Seconds of computing of a process, of a test, and in all: a mutant that never ends is noticed, too.
CPU_S, TEST_S, WAIT_S = 10, 120, 400
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


class QuickestFirst:
    """A plugin of pytest: writes how long each test took to a file, and sorts by what the file says."""

    def __init__(self, file: Path) -> None:
        self.file, self.seconds = file, dict[str, float]()
        self.known = json.loads(file.read_text()) if file.exists() else {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.known.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        if not self.known:
            self.file.write_text(json.dumps(self.seconds))


def survives(path: Path, text: str, number: int, tests: list[str]) -> bool:
    """Whether the tests pass with that text in the file. Runs in the copy."""
    path.write_text(text)
    os.utime(path, (number, number))  # or Python would take what it has compiled of another text for this one
    if (child := os.fork()) == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        signal.alarm(WAIT_S)
        used = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used + CPU_S, used + CPU_S))
        plugin = QuickestFirst(Path("durations.json"))
        os._exit(pytest.main([*OPTIONS, f"--timeout={TEST_S}", *tests], plugins=[plugin]))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # programs that a mutant has left behind
    return status == 0


def main(file: str, *tests: str) -> None:
    path, survivors, n, start = Path(file), 0, 0, time.monotonic()
    text = path.read_text()
    pytest.main([*OPTIONS, "--collect-only", "-qq", *tests])  # loads the libraries
    for name in [name for name in sys.modules if name.split(".")[0] in (*PACKAGES, "tests")]:
        del sys.modules[name]
    assert survives(path, text, 1, list(tests)), "the tests fail without a mutant"
    for n, (line, old, new, changed) in enumerate(mutants(ast.parse(text)), start=1):
        if survives(path, ast.unparse(changed), n + 1, list(tests)):
            survivors += 1
            print(f"{file}:{line}: {old!r} -> {new!r}", flush=True)
    print(f"{file}: {n} mutants, {survivors} survived, {time.monotonic() - start:.0f} s")


def copy_of_the_repository(into: Path) -> None:
    """All files that git knows, and the new ones that it does not ignore."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in names:
        if name and (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, into / name)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy_of_the_repository(Path(folder))
        os.chdir(folder)
        main(*sys.argv[1:])
