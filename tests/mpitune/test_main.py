"""`python -m mpitune TOOL`: what it says of its tools, and that each is there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mpitune
from mpitune import __main__ as command
from mpitune.errors import Exit
from tests.helpers import ROOT


def test_without_a_word_or_with_help_it_says_what_each_tool_does(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["-h"], ["--help"]):
        assert command.main(words) == Exit.DONE
        said = capsys.readouterr().out
        assert all(f"  {name} " in said and what in said for name, what in {**command.TOOLS, **command.SCRIPTS}.items())


def test_a_tool_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["stauts"]) == Exit.USAGE
    said = capsys.readouterr()
    assert "there is no tool 'stauts'" in said.err and "how far a study is" in said.err and not said.out


@pytest.mark.parametrize("tool", command.TOOLS)
def test_each_tool_has_its_help(tool: str, program: Callable[..., Any]) -> None:
    said = program("-m", "mpitune", tool, "--help").stdout
    assert said.startswith(f"usage: python -m mpitune {tool} ")


def test_the_command_imports_no_tool() -> None:
    code = "import sys, mpitune.__main__; print(*(name for name in sys.modules if name.startswith('mpitune.')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    light = {"mpitune.processes.output", "mpitune.processes", "mpitune.folders", "mpitune.__main__"}
    assert set(done.stdout.split()) == light


def test_data_sets_are_those_of_a_checkout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("mpitune.tools.data.checkout", lambda: None)
    assert command.main(["data", "--dataset", "digits"]) == Exit.USAGE
    assert "run it in a checkout" in capsys.readouterr().err


def test_a_function_and_no_module_has_the_name_of_each_public_name() -> None:
    """Else `from mpitune import search` would be one of the two, whichever was imported last."""
    here = Path(mpitune.__file__).parent
    assert not [name for name in mpitune.__all__ if (here / name).exists() or (here / f"{name}.py").exists()]
