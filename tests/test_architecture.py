"""The import arrows of docs/architecture.md, room by room, and that there is no circle."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter

from tests.helpers import ROOT
from tests.rooms import PACKAGES, PICTURE, ROOMS, imports, modules, picture, room_of

# Libraries that only these files may import.
ONLY = {
    "mpi4py": ("mpitune/ranks/mpi.py",),
    "matplotlib": ("mpitune/plotting.py", "mnist_svm/figures.py", "mnist_nn/figures.py"),
}
MODULES = modules()
KNOWN = frozenset(MODULES)


def test_every_room_says_what_it_is_for_and_is_in_the_table() -> None:
    for module, path in MODULES.items():
        if path.name == "__init__.py":
            assert module in ROOMS, f"{path.parent} is no room of the table in tests/rooms.py"
            assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"


def test_arrows_between_rooms() -> None:
    for module, path in MODULES.items():
        room = room_of(module, ROOMS)
        for name in imports(path, KNOWN):
            if name.split(".")[0] in PACKAGES and (other := room_of(name, ROOMS)) != room:
                assert other in ROOMS[room] or name in ROOMS[room], f"{path} imports {name}"


def test_libraries_with_one_door() -> None:
    for path in MODULES.values():
        file = str(path.relative_to(ROOT))
        for name in imports(path, KNOWN):
            assert file in ONLY.get(name.split(".")[0], (file,)), f"{file} imports {name}"


def test_no_class_name_is_defined_twice() -> None:
    """A name that means two things in two files makes a reader of either look for the other."""
    defined: dict[str, list[str]] = {}
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                defined.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not {name: places for name, places in defined.items() if len(places) > 1}


def test_no_circle() -> None:
    """Files import each other in one direction; an import inside a function counts too."""
    graph = {
        module: {name for name in imports(path, KNOWN) if name in MODULES and name != module}
        for module, path in MODULES.items()
        if path.name != "__init__.py"  # a package's door looks into its own rooms
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_the_picture_shows_the_rooms_as_they_are() -> None:
    assert PICTURE.read_text() == picture(), "draw it again: python -m tests.rooms"


def test_the_rank_and_its_help_need_no_heavy_library() -> None:
    """What a rank imports, on a laptop or a login node, holds no GPU library, no MPI, no solver."""
    code = (
        "import sys, mpitune.cli, mpitune.engine.node, mnist_svm.experiment, mnist_nn.experiment\n"
        "heavy = {'torch', 'torchvision', 'cuml', 'cupy', 'numba', 'sklearn', 'mpi4py', 'matplotlib', 'scipy'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
