"""The rooms of the project, what each may import, the imports between them, and a picture of both.

python -m tests.rooms            writes docs/figures/rooms.svg, which a test compares with the code
python -m tests.rooms FOLDER     prints the picture of another checkout, each file of mpitune a room of its own
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.helpers import ROOT

PACKAGES = ("mpitune", "common", "mnist_svm", "mnist_nn")
PICTURE = ROOT / "docs" / "figures" / "rooms.svg"
# A room: what its files may import beside their own room. "mpitune" is the files at the top of that folder.
ROOMS = {
    "mpitune._jit": set(),
    "mpitune.svm": {
        "mpitune._jit", "mpitune.svm.kernel", "mpitune.svm.solver", "mpitune.svm.decide", "mpitune.svm.memory",
    },
    "mpitune.svm.kernel": {"mpitune._jit"},
    "mpitune.svm.solver": {"mpitune._jit"},
    "mpitune.svm.decide": {"mpitune._jit", "mpitune.svm.kernel", "mpitune.svm.solver"},
    "mpitune.svm.memory": {"mpitune._jit", "mpitune.svm.kernel", "mpitune.svm.solver", "mpitune.svm.decide"},
    "mpitune": {
        "mpitune._jit", "mpitune.engine", "mpitune.export", "mpitune.memory", "mpitune.optimize",
        "mpitune.optimize.spaces", "mpitune.ranks", "mpitune.report", "mpitune.storage",
    },
    "mpitune.ranks": {"mpitune._jit", "mpitune.errors"},
    "mpitune.devices": {"mpitune._jit", "mpitune.errors", "mpitune.ranks"},
    "mpitune.memory": {"mpitune._jit", "mpitune.devices", "mpitune.errors"},
    "mpitune.storage": {"mpitune.errors", "mpitune.trial"},
    "mpitune.engine": {
        "mpitune.devices", "mpitune.errors", "mpitune.experiment", "mpitune.memory", "mpitune.output", "mpitune.ranks",
        "mpitune.settings", "mpitune.storage", "mpitune.trial",
    },
    "mpitune.report": {"mpitune", "mpitune.engine.progress", "mpitune.storage"},
    "mpitune.tools": {
        "mpitune", "mpitune.devices", "mpitune.engine", "mpitune.export", "mpitune.optimize", "mpitune.ranks",
        "mpitune.report", "mpitune.sklearn", "mpitune.storage", "mpitune.svm",
    },
    "mpitune.sklearn": {
        "mpitune", "mpitune.devices", "mpitune.engine", "mpitune.memory", "mpitune.ranks", "mpitune.sklearn.sharing",
        "mpitune.svm",
    },
    "mpitune.sklearn.sharing": set(),
    "mpitune.optimize": {
        "mpitune", "mpitune._jit", "mpitune.devices", "mpitune.engine", "mpitune.memory", "mpitune.optimize.spaces",
        "mpitune.optimize.strategies", "mpitune.ranks", "mpitune.storage",
    },
    "mpitune.optimize.spaces": {"mpitune.errors", "mpitune.settings", "mpitune.trial"},
    "mpitune.optimize.strategies": {
        "mpitune.errors", "mpitune.optimize.spaces", "mpitune.settings", "mpitune.trial",
    },
    "mpitune.export": {"mpitune", "mpitune.optimize", "mpitune.optimize.strategies", "mpitune.storage"},
    "common": {"mpitune", "mpitune.storage"},
    "mnist_svm": {
        "common", "mpitune", "mpitune._jit", "mpitune.devices", "mpitune.memory", "mpitune.report", "mpitune.storage",
        "mpitune.svm.memory", "mnist_svm.solvers",
    },
    "mnist_svm.solvers": {
        "mpitune", "mpitune.svm", "mpitune.svm.memory", "mnist_svm",
    },
    "mnist_nn": {
        "common", "mpitune", "mpitune._jit", "mpitune.devices", "mpitune.optimize.spaces",
        "mpitune.optimize.strategies", "mpitune.ranks", "mpitune.report", "mpitune.storage",
        "mnist_nn.memory", "mnist_nn.parallel", "mnist_nn.steps",
    },
    "mnist_nn.memory": {"mpitune.devices", "mnist_nn", "mnist_nn.steps"},
    "mnist_nn.steps": {"mpitune._jit", "mnist_nn"},
    "mnist_nn.parallel": {
        "common", "mpitune", "mpitune._jit", "mpitune.devices", "mpitune.engine", "mpitune.ranks", "mpitune.storage",
        "mnist_nn",
    },
}  # fmt: skip
BOX, GAP, STEP = (180, 30), 18, 84  # pixels: a room, between two rooms, from one floor to the next


def modules(root: Path = ROOT) -> dict[str, Path]:
    """The file of each module, by its dotted name."""
    paths = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


@cache
def imports(path: Path, known: frozenset[str]) -> tuple[str, ...]:
    """Modules that a file imports, wherever in it it does."""
    return tuple(dict.fromkeys(_imports(ast.parse(path.read_text()), known)))


def _imports(tree: ast.Module, known: frozenset[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:  # `from package import module` imports the module
                name = f"{node.module}.{alias.name}"
                yield name if name in known else node.module or ""


def room_of(module: str, rooms: Iterable[str]) -> str:
    """The innermost room of a module."""
    return max((room for room in rooms if (module + ".").startswith(room + ".")), key=len)


def arrows(root: Path, rooms: Iterable[str]) -> dict[str, set[str]]:
    """For each room the other rooms that its files import."""
    found: dict[str, set[str]] = {room: set() for room in rooms}
    files = modules(root)
    for module, path in files.items():
        room = room_of(module, found)
        for name in imports(path, frozenset(files)):
            if name.split(".")[0] in PACKAGES:
                found[room].add(room_of(name, found))
    return {room: others - {room} for room, others in found.items()}


def floors(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Rooms by height: each above all that it imports. Rooms that import each other share a floor."""
    height = dict.fromkeys(graph, 0)
    for _ in graph:
        for room, others in graph.items():
            below = [height[other] for other in others if room not in graph[other]]
            height[room] = max([height[room], *(h + 1 for h in below)])
    return [sorted(room for room in graph if height[room] == level) for level in range(max(height.values()), -1, -1)]


def reduced(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Without the arrows that others imply: a room that imports B, where B imports C, needs no arrow to C."""

    def reached(room: str, banned: str, seen: set[str]) -> set[str]:
        for other in graph[room] - seen - {banned}:
            seen.add(other)
            reached(other, banned, seen)
        return seen

    return {
        room: {
            other
            for other in others
            if room in graph[other] or not any(other in reached(by, room, set()) for by in others - {other})
        }
        for room, others in graph.items()
    }


def draw(graph: Mapping[str, set[str]]) -> str:
    """The rooms on their floors as SVG; an arrow points to what is imported, a red one goes both ways.

    Arrows that others imply are left out.
    """
    rows, graph = floors(graph), reduced(graph)
    width = max(len(row) for row in rows) * (BOX[0] + GAP) + GAP
    place = {}
    for level, row in enumerate(rows):
        left = (width - len(row) * (BOX[0] + GAP) + GAP) // 2
        place.update({room: (left + n * (BOX[0] + GAP), GAP + level * STEP) for n, room in enumerate(row)})
    lines, boxes = [], []
    for room, others in graph.items():
        for other in sorted(others):
            (x, y), (x2, y2) = place[room], place[other]
            colour = "#c0392b" if room in graph[other] else "#7f8c9b"
            lines.append(
                f'<line x1="{x + BOX[0] // 2}" y1="{y + BOX[1]}" x2="{x2 + BOX[0] // 2}" y2="{y2}" stroke="{colour}" '
                'marker-end="url(#head)"/>'
            )
    for room, (x, y) in place.items():
        boxes.append(
            f'<rect x="{x}" y="{y}" width="{BOX[0]}" height="{BOX[1]}" rx="5" fill="#f4f6f8" stroke="#34495e"/>'
            f'<text x="{x + BOX[0] // 2}" y="{y + 19}" text-anchor="middle">{room}</text>'
        )
    height = GAP + len(rows) * STEP - STEP + BOX[1] + GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">'
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#7f8c9b"/></marker></defs>'
        f'<rect width="{width}" height="{height}" fill="white"/>'
    )
    return "\n".join([head, *lines, *boxes, "</svg>", ""])


def picture() -> str:
    """Of this checkout. Each file at the top of mpitune is a box of its own: some lie below the engine, some above."""
    files = [module for module, path in modules().items() if path.parent == ROOT / "mpitune" and "." in module]
    return draw(arrows(ROOT, [*ROOMS, *files]))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        old = Path(sys.argv[1]).resolve()
        print(draw(arrows(old, {name if name.startswith("mpitune.") else name.split(".")[0] for name in modules(old)})))
    else:
        PICTURE.write_text(picture())
