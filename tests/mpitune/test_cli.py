"""Command lines: what is refused before anything is written, and help; single values are in tests/test_bad_input.py."""

import re
from pathlib import Path
from typing import Any

import pytest

from mnist_svm.experiment import SvmGrid
from mpitune.cli import main
from mpitune.errors import Exit
from mpitune.options import RunOptions
from mpitune.studies import run_study
from tests.helpers import ROOT, TOYS, studied
from tests.toys import Toy


def test_two_ranks_refuse_before_anything_is_written(program: Any, tmp_path: Path) -> None:
    options = ("--gpu", "none", "--workers", "1", "--results", tmp_path / "r")
    studied(tmp_path / "r", 3)
    before = (tmp_path / "r" / "journal.jsonl").read_bytes()
    done = program(*TOYS, "4", *options, ranks=2, status=Exit.USAGE)
    assert "a study with experiment = Toy, not toys" in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "r" / "journal.jsonl").read_bytes() == before
    # What does not change results may differ when a study goes on.
    run_study(Toy(3, seconds=0.01), RunOptions(workers=0, threads=2, results=tmp_path / "r", quiet=True))


@pytest.mark.slow
def test_several_ranks_that_cannot_see_each_other_are_refused(program: Any, tmp_path: Path) -> None:
    """mpirun's variables without its runtime: what a launcher of another MPI gives."""
    options = (*TOYS, "3", "--gpu", "none", "--results", tmp_path / "r")
    done = program(*options, env={"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, status=Exit.USAGE)
    assert "would run the whole study" in done.stderr and not (tmp_path / "r").exists()
    # The variables of a rank other than 0: it says nothing, rank 0 has.
    quiet = program(*options, env={"PMI_SIZE": "2", "PMI_RANK": "1"}, status=Exit.DONE)
    assert quiet.stderr == ""


@pytest.mark.slow
def test_ranks_without_mpi4py_are_refused(program: Any, tmp_path: Path) -> None:
    """mpi4py is hidden as Python hides a module; one process needs none."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text("import sys\nsys.modules['mpi4py'] = None\n")
    env = {"PYTHONPATH": f"{tmp_path / 'hidden'}:{ROOT}"}
    options = (*TOYS, "3", "--gpu", "none", "--workers", "1", "--results", tmp_path / "r")
    for launcher in ("OMPI_COMM_WORLD_", "PMI_"):
        done = program(*options, env={**env, f"{launcher}SIZE": "2", f"{launcher}RANK": "0"}, status=Exit.USAGE)
        (line,) = done.stderr.splitlines()
        assert line.endswith(' started several processes, but mpi4py is not installed: pip install "mpitune[mpi]"')
    assert not (tmp_path / "r").exists()
    program(*options, env={**env, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"})
    program(*options, env=env)
    broken = {"MPI4PY_LIBMPI": str(tmp_path / "none.so"), "PMI_SIZE": "2", "PMI_RANK": "0"}
    assert "mpi4py finds no MPI library (" in program(*options, env=broken, status=Exit.USAGE).stderr


HEAVY = "torch", "sklearn", "scipy", "matplotlib", "pandas", "optuna", "numba", "mpi4py"


@pytest.mark.parametrize("module", ["mnist_svm", "mnist_nn"])
def test_help_is_short_and_loads_nothing_heavy(module: str, program: Any) -> None:
    code = (
        f"import atexit, runpy, sys; sys.argv[1:] = ['--help']; heavy = {HEAVY}\n"
        "atexit.register(lambda: print('loaded', [name for name in heavy if name in sys.modules]))\n"
        f"runpy.run_module({module!r}, run_name='__main__')"
    )
    text = program("-c", code).stdout
    options = set(re.findall(r"^  (?:-\w(?: [A-Z]+)?, )?(--[a-z-]+)", text, re.MULTILINE))
    assert "loaded []" in text and len(options) <= 17
    assert options >= {"--gpu", "--workers", "--data", "--results", "--seed", "--help-all"}
    assert "n_tuning" in text and "--batch" in text and "how it is run:" in text


def test_help_shows_every_option_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(SvmGrid, ["--help-all"])
    text = capsys.readouterr().out
    names = ("--folds FOLDS", "(default 5)", "--gpu", "--test-size", "--trial-timeout", "--track")
    assert all(name in text for name in names)
