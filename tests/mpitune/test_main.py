"""`python -m mpitune TOOL`: what it says of its tools, and that each is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mpitune
from mpitune import __main__ as command
from mpitune.errors import Exit


def test_without_a_word_or_with_help_it_says_what_each_tool_does(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["-h"], ["--help"]):
        assert command.main(words) == Exit.DONE
        said = capsys.readouterr().out
        assert all(f"  {name} " in said and what in said for name, what in {**command.TOOLS, **command.SCRIPTS}.items())


def test_a_tool_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["stauts"]) == Exit.USAGE
    said = capsys.readouterr()
    assert "there is no tool 'stauts'" in said.err and "how far a study is" in said.err and not said.out


def test_a_script_with_options_that_cannot_be_is_not_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "script.py").write_text("raise AssertionError")
    for wrong, words in (("--workers=-1", "workers=-1"), ("--window=0", "--window 0: "), ("--join", "--join is for a")):
        assert command.main([wrong, str(tmp_path / "script.py")]) == Exit.USAGE
        said = capsys.readouterr().err
        assert said.startswith(f"python -m mpitune: {words}") and said.count("\n") == 1
    assert command.main(["--sklearn", str(tmp_path / "none.py")]) == Exit.USAGE
    said = capsys.readouterr().err
    assert "none.py cannot be run: " in said and said.count("\n") == 1


def test_options_are_for_all_studies_of_a_script_and_what_none_takes_is_said(program: Any, tmp_path: Path) -> None:
    for code, idle in (
        ("from mpitune import *; p = search(pid, {'x': Float(0, 1)}, n_trials=9, minimize='p').to_pandas().value_p", 1),
        ("from joblib import *; p = Parallel(n_jobs=-1)(delayed(pid)() for _ in range(9))", 1),
        ("from mpitune.hyperopt import *; from hyperopt import hp; p = fmin(pid, hp.randint('x', 9), max_evals=9)", 0),
    ):  # fmt: skip
        (tmp_path / "script.py").write_text(f"import os\npid = lambda *trial: os.getpid()\n{code}\nprint(len({{*p}}))")
        done = program("-m", "mpitune", "--workers", "1", "--results", "r", "script.py", cwd=tmp_path)
        assert done.stdout.splitlines()[-1] == "1", "one worker"
        assert done.stderr.count("nothing in script.py has used --results\n") == idle == 1 - (tmp_path / "r").exists()


@pytest.mark.parametrize("tool", command.TOOLS)
def test_each_tool_has_its_help(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        command.main([tool, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: python -m mpitune {tool} ")


def test_the_command_imports_no_tool_and_the_front_door_is_light_and_complete(program: Any) -> None:
    code = (
        "import sys, mpitune.__main__; print(*(name for name in sys.modules if name.startswith('mpitune.')))\n"
        "heavy = {'numpy', 'cloudpickle'}; import mpitune; print(*heavy & set(sys.modules))\n"
        "[getattr(mpitune, name) for name in mpitune.__all__]\n"
        "heavy = {'torch', 'numba', 'sklearn', 'mpi4py', 'matplotlib', 'scipy', 'optuna', 'pandas'}\n"
        "print(*heavy & set(sys.modules))"
    )
    of_command, at_first, with_all = program("-c", code).stdout.splitlines()
    light = {"mpitune.lazy", "mpitune.processes.output", "mpitune.processes", "mpitune.folders", "mpitune.__main__"}
    assert set(of_command.split()) == light and not at_first and not with_all
    assert set(mpitune.__all__) <= set(dir(mpitune)) and len(mpitune.__all__) <= 20


def test_a_function_and_no_module_has_the_name_of_each_public_name() -> None:
    """Else `from mpitune import search` would be one of the two, whichever was imported last."""
    here = Path(mpitune.__file__).parent
    assert not [name for name in mpitune.__all__ if (here / name).exists() or (here / f"{name}.py").exists()]
