"""What the requirements files resolve to now, without installing it."""

import ast
import re
import sys
import tomllib
from collections.abc import Mapping

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.helpers import ROOT
from tests.install.resolve import cuda_11_is_reachable, index_is_reachable, resolve
from tests.install.rooms import rooms

FILES = ["requirements.txt", *sorted(path.name for path in ROOT.glob("requirements-*.txt"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Of these pairs it is known that the first can be imported beside the second; who has tried others adds to them.
KNOWN = {
    "cuml-cu12": {"26.2.*": {"scikit-learn": ">=1.7,<1.10", "torch": "==2.10.*", "numba": "==0.61.*"}},
    "cuml-cu13": {"26.10.*": {"scikit-learn": ">=1.8,<1.10", "torch": "==2.15.*", "numba": "==0.64.*"}},
    "torch": {
        "2.10.*": {"torchvision": "==0.25.*", "triton": "==3.6.*", "nvidia-nccl-cu12": "==2.27.*"},
        "2.15.*": {"torchvision": "==0.29.*", "triton": "==3.9.*", "nvidia-nccl-cu13": "==2.30.*"},
    },
    "numba": {
        "0.61.*": {"llvmlite": "==0.44.*", "numpy": "<2.3"},
        "0.64.*": {"llvmlite": "==0.46.*", "numpy": "<2.5"},
        "0.68.*": {"llvmlite": "==0.50.*", "numpy": "<2.6"},
    },
}

# The first and last Python of each file. cuML 26.2 has no wheels for 3.14.
PYTHONS = {
    "requirements.txt": ("3.11", "3.14"),
    "requirements-cu12.txt": ("3.11", "3.13"),
    "requirements-cu13.txt": ("3.11", "3.14"),
}


def check_pairs(versions: Mapping[str, str]) -> None:
    """Every package of KNOWN is there in a version of KNOWN, beside what it is known to work with."""
    for name, table in KNOWN.items():
        if name not in versions:
            continue
        rows = [row for version, row in table.items() if SpecifierSet(f"=={version}").contains(versions[name])]
        assert rows, f"{name} {versions[name]} is new: install and import it, and add it to KNOWN"
        for other, allowed in rows[0].items():
            assert SpecifierSet(allowed).contains(versions.get(other, "0")), (
                f"{name} {versions[name]} beside {other} {versions.get(other)}: known to work with {allowed}"
            )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "python"),
    [(name, "") for name in FILES] + [(name, one) for name, pythons in PYTHONS.items() for one in pythons],
)
def test_versions_are_known_to_work_together(name: str, python: str) -> None:
    """For this Python, and for each one that the README names there are wheels."""
    if not index_is_reachable():
        pytest.skip("the index of packages does not answer")
    if "cu11" in name and not cuda_11_is_reachable():
        pytest.skip("the index of PyTorch for CUDA 11 does not answer")
    versions = resolve(name, python=python)
    check_pairs(versions)
    libraries = {match[0] for package in versions if (match := re.search(r"(?<=^nvidia-nccl-cu)\d+", package))}
    assert len(libraries) <= 1, f"two NCCLs write the same file: {libraries}"
    cuda = re.search(r"cu(\d+)", name)
    assert not cuda or libraries == {cuda[1]}, "torch is not built for the CUDA of this file"


def test_the_readme_names_the_pythons() -> None:
    readme = (ROOT / "docs" / "installing.md").read_text()
    assert "Python 3.11 to 3.14" in readme and "CUDA 12 and 11: to 3.13" in readme
    named = [line.rsplit(" ", 1)[1] for line in PROJECT["classifiers"] if line.startswith("Programming Language")]
    assert (named[0], named[-1]) == PYTHONS["requirements.txt"] and len(named) == 4


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
    """Needs no index; `test_versions_are_known_to_work_together` resolves the files where their indexes are reached."""
    pinned = dict(line.split("==") for line in lines_of(f"requirements-pin{cuda}.txt"))
    for line in lines_of(f"requirements{cuda}.txt"):
        asked = Requirement(line)
        assert asked.specifier.contains(pinned[asked.name]), f"{line}, but {pinned[asked.name]} is pinned"


# Imported only where an estimator of the user's is made of it, or a notebook has imported it.
OF_USERS = {"lightgbm", "xgboost", "IPython"}


def test_all_that_is_imported_is_declared() -> None:
    named = {"sklearn": "scikit-learn", "PIL": "pillow", "cuml": "cuml-cu12", "cupy": "cuml-cu12"}
    lines = lines_of("requirements-cu12.txt").union(PROJECT["optional-dependencies"]["search"])
    lines = lines.union(*(PROJECT["optional-dependencies"][extra] for extra in ("export", "hydra", "sweeps")))
    named |= {"mlflow": "mlflow-skinny", "markupsafe": "jinja2", "yaml": "pyyaml"}
    named |= {"hydra": "hydra-core", "omegaconf": "hydra-core"}  # which is made of it
    declared = {Requirement(line).name for line in lines}
    for path in [path for room in rooms() for path in (ROOT / room).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            for module in {name.split(".")[0] for name in names} - rooms() - sys.stdlib_module_names - OF_USERS:
                assert named.get(module, module) in declared, f"{path.relative_to(ROOT)} imports {module}"
