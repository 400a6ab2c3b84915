"""Each trainer of docs/trainers.md is stopped by a strategy, with and without workers, and finds the same."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import PATIENCE, ROOT

SECTIONS = re.findall(
    r"^## (\w+)\n\n```python\n(.*?)^```", (ROOT / "docs/trainers.md").read_text(), re.DOTALL | re.MULTILINE
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "script"), SECTIONS, ids=[name for name, _ in SECTIONS])
def test_a_trainer_is_stopped(program: Any, name: str, script: str, tmp_path: Path) -> None:
    if find_spec(name.lower()) is None:
        pytest.skip(f"{name} is not installed")
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "alone.py").write_text(script.replace('minimize="loss"', 'minimize="loss", window=4, workers=0'))
    (tmp_path / "two.py").write_text(script.replace('minimize="loss"', 'minimize="loss", window=4, workers=2'))
    said = [
        program(tmp_path / name, cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": ""}, timeout=PATIENCE).stdout
        for name in ("script.py", "alone.py", "two.py")
    ]
    assert re.search(r"\d trials: \d complete, \d+ pruned", said[0]), said[0]
    assert said[1][said[1].index("trials:") - 2 :] == said[2][said[2].index("trials:") - 2 :]
