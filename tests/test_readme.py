"""What the README and the pages of docs/ show works as it is printed there."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT, on_one_core

README = (ROOT / "README.md").read_text()


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


GRID, SEARCH = python_blocks("README.md")
EXPERIMENT, CLOSER = python_blocks("docs/experiment.md")
FIRST, STAGED = python_blocks("docs/tutorial.md")
(RANDOMIZED,) = python_blocks("docs/sklearn.md")


def test_the_search_of_the_readme_runs(program: Any, tmp_path: Any) -> None:
    (tmp_path / "script.py").write_text(SEARCH)
    how: dict[str, Any] = {"env": {"CUDA_VISIBLE_DEVICES": ""}, "preexec_fn": on_one_core}
    lines = program(tmp_path / "script.py", cwd=tmp_path, **how).stdout.splitlines()
    assert lines[0].startswith("50 trials: 50 complete") and lines[-1].startswith("{'lr': 0.0")
    assert (tmp_path / "study" / "trials.csv").exists()


FOUND = "{'svc__C': 10, 'svc__gamma': 0.01} 0.956"


@pytest.mark.parametrize("ranks", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_the_grid_search_of_the_readme_runs(program: Any, tmp_path: Any, ranks: int) -> None:
    """On two ranks with what the page prints; on a part of the digits, which takes a fifth of the time, it runs."""
    assert len(GRID.splitlines()) <= 13
    (tmp_path / "digits.py").write_text(GRID if ranks else GRID.replace(".fit(X, y)", ".fit(X[::6], y[::6])"))
    lines = program(tmp_path / "digits.py", ranks=ranks, cwd=tmp_path, preexec_fn=on_one_core).stdout.splitlines()
    assert len(lines) == max(1, ranks)
    assert all(line == FOUND if ranks else line.startswith("{'svc__C': ") for line in lines)


BLOCKS = {
    "first.py": (FIRST, "64 trials: 64 complete"),
    "staged.py": (STAGED, "27 trials: 1 complete, 26 pruned"),
    "randomized.py": (RANDOMIZED, r"\{'gamma': 0.001, 'C': 10+\} 0.9\d+\n$"),
    "closer.py": (CLOSER, "True\n$"),
    **{f"search-{number}.py": (code, "") for number, code in enumerate(python_blocks("docs/search.md"))},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_of_a_page_runs_in_an_empty_folder(program: Any, tmp_path: Path, name: str) -> None:
    code, answer = BLOCKS[name]
    (tmp_path / name).write_text(code)
    output = program(tmp_path / name, cwd=tmp_path).stdout
    assert re.match(answer, output), output


def test_the_experiment_of_the_docs_runs(program: Any, tmp_path: Any) -> None:
    assert len(EXPERIMENT.splitlines()) <= 35
    (tmp_path / "ridge.py").write_text(EXPERIMENT)
    program("ridge.py", "6", "--gpu", "none", "--workers", "1", cwd=tmp_path)
    rows = (tmp_path / "results" / "ridge" / "trials.csv").read_text().splitlines()
    assert len(rows) == 7 and rows[0].startswith("key,param_alpha,value_r2,")


def test_every_file_it_names_is_there() -> None:
    for name in re.findall(r"\]\(([^)#:]+)\)|`((?:docs|benchmarks|requirements)[\w./-]*)`", README):
        path = name[0] or name[1]
        assert (ROOT / path).exists(), path
