"""What the README and the pages of docs/ show works as it is printed there."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import PATIENCE, ROOT, on_one_core, wait_until

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
    assert len(GRID.splitlines()) <= 13
    (tmp_path / "digits.py").write_text(GRID)
    lines = program(tmp_path / "digits.py", ranks=ranks, cwd=tmp_path, preexec_fn=on_one_core).stdout.splitlines()
    assert len(lines) == max(1, ranks) and set(lines) == {FOUND}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(python_blocks("docs/search.md"))))
def test_the_blocks_about_search_run_in_an_empty_folder(program: Any, tmp_path: Path, number: int) -> None:
    (tmp_path / "script.py").write_text(python_blocks("docs/search.md")[number])
    program(tmp_path / "script.py", cwd=tmp_path)


@pytest.mark.slow
def test_the_tutorial_goes_on_with_more_trials(program: Any, tmp_path: Path) -> None:
    first = tmp_path / "first.py"
    first.write_text(FIRST)
    output = program(first, cwd=tmp_path).stdout
    assert output.startswith("64 trials: 64 complete") and output.count("64 trials") == 1, "one report"
    first.write_text(FIRST.replace("n_trials=64", "n_trials=512"))
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    job = subprocess.Popen([sys.executable, "first.py"], cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "results" / "first" / "journal.jsonl"
    assert wait_until(lambda: '"t000070"' in journal.read_text())
    job.send_signal(signal.SIGINT)
    assert job.communicate(timeout=PATIENCE)[1].endswith("first.py: SIGINT: run the same command to continue\n")
    assert job.returncode == 75
    first.write_text(FIRST.replace("n_trials=64", "n_trials=512").replace("0.2", "0.0"))
    assert program(first, cwd=tmp_path).stdout.startswith("512 trials: 512 complete")
    text = journal.read_text()
    assert text.count('"t000063"') == text.count('"t000511"') == 1, "what was known was computed again"


@pytest.mark.slow
def test_the_strategy_of_the_tutorial_stops_trials(program: Any, tmp_path: Path) -> None:
    (tmp_path / "staged.py").write_text(STAGED)
    output = program(tmp_path / "staged.py", cwd=tmp_path).stdout
    assert output.startswith("27 trials: 1 complete, 26 pruned")


@pytest.mark.slow
def test_the_searches_of_other_pages_run(program: Any, tmp_path: Path) -> None:
    for name, code, answer in (
        ("randomized.py", RANDOMIZED, r"\{'gamma': 0.001, 'C': 10+\} 0.9\d+\n"), ("closer.py", CLOSER, "True\n"),
    ):  # fmt: skip
        (tmp_path / name).write_text(code)
        output = program(tmp_path / name, cwd=tmp_path).stdout
        assert re.fullmatch(answer, output), output


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
