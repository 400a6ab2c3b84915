"""What the README shows works as it is printed there."""

import re
from typing import Any

from tests.helpers import ROOT

README = (ROOT / "README.md").read_text()


def test_the_experiment_of_the_readme_runs(program: Any, tmp_path: Any) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(source.splitlines()) <= 35
    (tmp_path / "ridge.py").write_text(source)
    program("ridge.py", "6", "--gpu", "none", "--workers", "2", cwd=tmp_path)
    rows = (tmp_path / "results" / "ridge" / "trials.csv").read_text().splitlines()
    assert len(rows) == 7 and rows[0].startswith("key,alpha,r2,")


def test_every_file_it_names_is_there() -> None:
    for name in re.findall(r"\]\(([^)#:]+)\)|`((?:docs|benchmarks|requirements)[\w./-]*)`", README):
        path = name[0] or name[1]
        assert (ROOT / path).exists(), path
