"""A study is the same on any number of workers, and after any number of kills."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.helpers import begun
from tests.mpitune.optuna.made import quiet

STUDY = """
import os, sys, time, optuna
from tests.mpitune.optuna.made import Made, digest, made_study, quiet
quiet()
number, where = int(sys.argv[1]), sys.argv[2]
storage = {
    "none": lambda: None,
    "sqlite": lambda: f"sqlite:///{sys.argv[3]}",
    "journal": lambda: optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(sys.argv[3])),
}[where]()
study = made_study(number, study_name="made", storage=storage, load_if_exists=True)
def objective(trial, made=Made(number)):
    time.sleep(0.02)
    return made(trial)
study.optimize(objective, n_trials=30 if where == "none" else max(0, 30 - len(study.trials)), catch=ValueError)
print(digest(study), len(study.trials))
"""


def through(script: str | Path, *arguments: object, workers: int) -> list[str]:
    """What follows `python` for a user's script by `python -m mpitune`, with four trials open."""
    options = ["--gpu", "none", "--window", "4", "--workers", str(workers)]
    return ["-m", "mpitune", *options, str(script), *map(str, arguments)]


@pytest.mark.slow
def test_optuna_alone_continues_a_killed_study(program: Any, tmp_path: Path) -> None:
    script, storage = tmp_path / "study.py", tmp_path / "killed"
    script.write_text(STUDY)
    process = begun(*through(script, 3, "journal", storage, workers=2), start_new_session=True)
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=2.5)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done = program(script, 3, "journal", storage)
    assert done.stdout.split()[1:] == ["30"], done.stderr
    # and here once more, with trials of Optuna's among ours
    assert program(*through(script, 3, "journal", storage, workers=2)).stdout == done.stdout


CHILDREN = """
import multiprocessing as mp, sys, joblib, optuna
optuna.logging.set_verbosity(optuna.logging.ERROR)
def child(path):
    backend = optuna.storages.journal.JournalFileBackend(path)
    storage = optuna.storages.JournalStorage(backend)
    study = optuna.create_study(study_name="p", storage=storage, load_if_exists=True)
    study.optimize(lambda trial: trial.suggest_float("x", -1, 1) ** 2, n_trials=3)
    return len(joblib.Parallel(2)(joblib.delayed(abs)(i) for i in range(2))), len(study.trials)
def alone():
    study = optuna.create_study()
    study.optimize(lambda trial: trial.suggest_float("x", -1, 1), n_trials=3)
    sys.exit(len(study.trials))
fork = mp.get_context("fork")
child(sys.argv[1])  # after calls there are threads, one of which has a lock
with fork.Pool(2) as pool:
    print(sum(n for n, _ in pool.map(child, [sys.argv[1]] * 2, chunksize=1)), child(sys.argv[1])[1])
process = fork.Process(target=alone)
process.start()
process.join()
print(process.exitcode)
"""


@pytest.mark.slow
def test_children_of_a_script_run_optunas_own_loop(program: Any, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(CHILDREN)
    done = program(*through(tmp_path / "s.py", tmp_path / "p.log", workers=2), ranks=2)
    assert done.stdout == "4 12\n3\n"


@pytest.mark.slow
def test_without_mpitune_each_rank_would_have_a_study(program: Any, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(
        "import optuna\nfrom mpitune.optuna import optimize\noptimize(optuna.create_study(), abs, 2)\n"
    )
    said = program(tmp_path / "s.py", ranks=2, status=None).stderr
    assert "start the script as mpirun -n 2 python -m mpitune script.py" in said


def test_a_storage_that_another_process_writes_to_is_one_line(tmp_path: Path) -> None:
    script = tmp_path / "study.py"
    script.write_text(STUDY.replace("time.sleep(0.02)", "time.sleep(0.2)"))
    database = tmp_path / "study.db"
    process = begun(*through(script, 3, "sqlite", database, workers=2))
    while process.poll() is None and not has_trials(database):
        time.sleep(0.1)
    quiet()
    optuna.load_study(study_name="made", storage=f"sqlite:///{database}").add_trial(
        optuna.trial.create_trial(value=1.0)
    )
    _, err = process.communicate()
    (line,) = (line for line in err.splitlines() if "another process" in line)
    assert process.returncode == 2 and "let one job run it" in line and "Traceback" not in err


def has_trials(database: Path) -> bool:
    if not database.exists():
        return False
    with suppress(sqlite3.Error), sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        return bool(connection.execute("select count(*) from trials").fetchone()[0])
    return False
