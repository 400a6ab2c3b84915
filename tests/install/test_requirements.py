"""What the requirements files and pyproject.toml ask for."""

import ast
import re
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from tests.helpers import ROOT
from tests.install.rooms import rooms

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_readme_names_the_pythons() -> None:
    readme = (ROOT / "docs" / "installing.md").read_text()
    assert "Python 3.11 to 3.14" in readme and "CUDA 12 and 11: to 3.13" in readme
    named = [line.rsplit(" ", 1)[1] for line in PROJECT["classifiers"] if line.startswith("Programming Language")]
    assert (named[0], named[-1]) == ("3.11", "3.14") and len(named) == 4


def lines_of(name: str) -> set[str]:
    """The requirements of a file and of those that it includes, without their reasons."""
    found: set[str] = set()
    for line in (ROOT / name).read_text().splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        if line.startswith("-r "):
            found |= lines_of(line.removeprefix("-r "))
        elif line and not line.startswith("--"):
            found.add(str(Requirement(line)))
    return found


def test_extras_ask_for_what_the_files_ask_for() -> None:
    own = Requirement(PROJECT["name"]).name
    parts = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    lines = {extra: [Requirement(line) for line in lines] for extra, lines in parts.items()}
    sets = {extra: {str(each) for each in asked if each.name != own} for extra, asked in lines.items()}
    base = sets[""] | sets["mpi"] | sets["nn"]
    assert base == lines_of("requirements.txt")
    for extra in ("cu12", "cu13", "dev"):
        (ours,) = (each.extras for each in lines[extra] if each.name == own)
        assert ours == ({"mpi", "nn"} if extra == "dev" else {"nn"}), "GPUs of one machine need no MPI"
        assert base | sets[extra] == lines_of(f"requirements-{extra}.txt"), extra


@pytest.mark.parametrize("cuda", ["", "-cu11", "-cu12", "-cu13"])
def test_pins_are_versions_that_the_file_allows(cuda: str) -> None:
    pinned = dict(line.split("==") for line in lines_of(f"requirements-pin{cuda}.txt"))
    for line in lines_of(f"requirements{cuda}.txt"):
        asked = Requirement(line)
        assert asked.specifier.contains(pinned[asked.name]), f"{line}, but {pinned[asked.name]} is pinned"


# Imported only where the user has: a script of it, an estimator that is made of it, a notebook.
OF_USERS = {"lightgbm", "xgboost", "IPython", "hyperopt", "ray", "pyarrow"}


def test_all_that_is_imported_is_declared() -> None:
    named = {"sklearn": "scikit-learn", "PIL": "pillow", "cuml": "cuml-cu12", "cupy": "cuml-cu12"}
    lines = lines_of("requirements-cu12.txt").union(PROJECT["optional-dependencies"]["search"])
    lines = lines.union(*(PROJECT["optional-dependencies"][extra] for extra in ("track", "hydra", "sweeps")))
    named |= {"mlflow": "mlflow-skinny", "markupsafe": "jinja2", "yaml": "pyyaml"}
    named |= {"hydra": "hydra-core", "omegaconf": "hydra-core"}  # which is made of it
    declared = {Requirement(line).name for line in lines}
    for path in [path for room in rooms() for path in (ROOT / room).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            for module in {name.split(".")[0] for name in names} - rooms() - sys.stdlib_module_names - OF_USERS:
                assert named.get(module, module) in declared, f"{path.relative_to(ROOT)} imports {module}"
