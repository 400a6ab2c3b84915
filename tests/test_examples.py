"""Every example runs as its first lines say, and finds what is there to find."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import PATIENCE, ROOT

EXAMPLES = ROOT / "examples"
SAYS = {
    "gang_trials.py": r"8 trials: 8 complete",
    "lightgbm_search.py": r"17 trials: \d complete, \d+ pruned\nthe best:\n  trial \d+: loss 0\.0\d",
    "pytorch_pruning.py": r"18 trials: \d complete, \d+ pruned\nthe best:\n  trial \d+: loss 0\.[01]",
    "shell_command.py": r"16 trials: 16 complete\nthe best:\n  trial \d+: loss 0\.\d+ with rate=",
    "sklearn_pipeline.py": r"20 trials: 20 complete\nthe best:\n  trial \d+: accuracy 0\.9",
    "vmap_networks.py": r"160 trials: 160 complete\nthe best:\n  trial 44: loss 0\.27\d+ with lr=0\.79",
    "two_objectives.py": r"24 trials: 24 complete\nthe Pareto front:\n(  trial \d+: error 0\.\d+, leaves \d+ .*\n){4,}",
}


def test_every_example_is_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAYS)
def test_an_example(program: Any, name: str, tmp_path: Path) -> None:
    if name == "lightgbm_search.py":
        pytest.importorskip("lightgbm")
    done = program(EXAMPLES / name, cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": ""})
    assert re.search(SAYS[name], done.stdout), done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", 4)
    nbclient.NotebookClient(notebook, timeout=PATIENCE, resources={"metadata": {"path": str(tmp_path)}}).execute()
    report = notebook.cells[2].outputs[-1].text
    assert report.startswith("24 trials: 24 complete\nthe best:\n")
