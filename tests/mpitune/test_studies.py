"""Studies from Python code: several in one script, under python and mpirun, for a debugger, and what goes wrong."""

import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

import mpitune
from mpitune import Experiment, RunOptions, Trial, one_round, per_trial, run_study
from mpitune.errors import UsageError
from mpitune.experiment import WorkerContext
from mpitune.optuna import optimize
from mpitune.port import WantsCores
from mpitune.studies import StudyError
from mpitune.trial import Outcome
from tests.helpers import journal_lines, on_one_core
from tests.toys import Toy

SCRIPT = """
import json, os, sys
from dataclasses import dataclass
import numpy as np
from mpitune import Experiment, RunOptions, Trial, one_round, per_trial, run_study
from mpitune.trial import Evaluation

OFFSET = 3
class Shape:
    def at(self, x):
        return (x - OFFSET) ** 2

@dataclass(frozen=True)
class Parabola(Experiment):
    n: int
    twice: object = lambda x: 2 * x
    def searches(self):
        yield one_round(Trial(f"x{i}", {"x": i}) for i in range(self.n))
    def objective(self, worker):
        def result(trial):
            x = trial.params["x"]
            return Evaluation(trial.key, {"loss": Shape().at(x), "twice": self.twice(x)}, {"xs": np.arange(x)})
        return per_trial(result)

options = RunOptions(gpu="none", workers=int(sys.argv[1]), quiet=True)
for n in (5, 7):
    found = run_study(Parabola(n), options)
    print(json.dumps([
        [o.trial.key, o.result.values["loss"], o.result.values["twice"], o.result.arrays["xs"].tolist()] for o in found
    ]) + "\\n", end="", flush=True)
"""


@pytest.mark.slow
def test_two_studies_in_one_script(program: Any, tmp_path: Path) -> None:
    """All that the trials need is the script's own: classes, a global, a lambda; and it has no guard."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = program(tmp_path / "script.py", 1, ranks=2, cwd=tmp_path)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    expected = [[[f"x{x}", (x - 3) ** 2, 2 * x, list(range(x))] for x in range(n)] for n in (5, 7)]
    assert sorted(said, key=len) == sorted(expected * 2, key=len)
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]  # no results folder was named


@pytest.mark.slow
def test_an_exception_of_one_rank_ends_all(program: Any, tmp_path: Path) -> None:
    """The other one would wait for it in the second study."""
    line = "    found = "
    broken = '    if n == 7 and os.environ["OMPI_COMM_WORLD_RANK"] == "1": raise KeyError("mine")\n'
    (tmp_path / "script.py").write_text(SCRIPT.replace(line, broken + line))
    done = program(tmp_path / "script.py", 1, ranks=2, status=None, cwd=tmp_path)
    assert done.returncode != 0 and "KeyError: 'mine'" in done.stderr


@dataclass(frozen=True)
class Listed(Experiment):
    """Trials whose result a function tells."""

    function: Callable[[Trial], Any]
    n: int = 3

    def searches(self) -> Iterator[Any]:
        yield one_round(Trial(f"t{i}", {"x": i}) for i in range(self.n))

    def objective(self, worker: WorkerContext) -> Any:
        return per_trial(self.function)


def plain(outcomes: list[Outcome]) -> list[tuple[str, dict[str, float]]]:
    return [(trial.key, dict(result.values)) for trial, result in outcomes]


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_a_study_that_is_told_to_stop_raises_and_the_same_call_continues(
    tmp_path: Path, number: signal.Signals, raised: type[BaseException]
) -> None:
    def value(trial: Trial) -> dict[str, float]:
        if not (tmp_path / "told").exists():
            (tmp_path / "told").touch()
            os.kill(os.getpid(), number)
        return {"x": float(trial.params["x"])}

    options = RunOptions(workers=0, results=tmp_path / "r", quiet=True)
    with pytest.raises(raised) as stopped:
        run_study(Listed(value), options)
    assert raised is KeyboardInterrupt or stopped.value.args == (75,)
    assert 0 < len(journal_lines(tmp_path / "r")) < 3
    assert len(run_study(Listed(value), options)) == 3


@pytest.mark.parametrize("keep", [False, True])
def test_only_what_is_kept_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool) -> None:
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(file), fsync(file))[1])
    options = RunOptions(workers=0, quiet=True, results=tmp_path / "r" if keep else None)
    assert len(run_study(Toy(3), options)) == 3
    assert bool(synced) == keep


def test_a_trial_fails_in_this_process_as_in_a_worker_but_for_a_debugger() -> None:
    def value(trial: Trial) -> dict[str, float]:
        if trial.key == "t1":
            raise ZeroDivisionError(trial.key)
        return {"x": float(trial.params["x"])} if trial.key != "t2" else sys.exit("no such file")

    here, there = (run_study(Listed(value, 4), RunOptions(gpu="none", workers=n, quiet=True)) for n in (0, 1))
    assert plain(here) == plain(there) == [("t0", {"x": 0.0}), ("t1", {}), ("t2", {}), ("t3", {"x": 3.0})]
    for outcomes in (here, there):
        assert "ZeroDivisionError: t1" in (outcomes[1].result.error or "")
        assert "SystemExit: no such file" in (outcomes[2].result.error or "")
    with pytest.raises(ZeroDivisionError, match="t1"):
        run_study(Listed(value, 4), RunOptions(debug=True, quiet=True))
    with pytest.raises(UsageError, match="debug runs everything in this process: leave workers=2 out"):
        RunOptions(debug=True, workers=2)


def drawn() -> list[float]:
    import torch  # which a worker has not imported before

    return [random.random(), float(np.random.rand()), float(torch.rand(1))]


class Drawing:
    """An objective that draws from all global sources; its trial 2 fails once after that."""

    def setup(self, device: str) -> None:
        self.first = drawn()

    def __call__(self, trial: Any) -> dict[str, float]:
        own = drawn()
        if trial.number == 2 and not (trial.folder / "failed").exists():
            (trial.folder / "failed").touch()
            raise ValueError
        trial.set_user_attr("drawn", [*self.first, *own])
        return {"x": own[0]}


def study_of(seed: int | None, options: RunOptions) -> list[Any]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    optimize(study, lambda trial: sum(drawn()) + trial.suggest_float("x", 0, 1), 6, window=3, options=options)
    return [trial.value for trial in study.trials]


def searched(objective: Any, options: RunOptions, **more: Any) -> list[Any]:
    space = {"x": mpitune.Float(0, 1)}
    found = mpitune.search(objective, space, n_trials=6, minimize="x", window=4, options=options, **more)
    return [[trial.values, trial.user_attrs] for trial in found.trials]


DOORS: dict[str, Callable[[RunOptions], list[Any]]] = {
    "search": partial(searched, Drawing()),
    "a group": partial(searched, lambda trials: [drawn()[1] for _ in trials], together=2),
    "optuna": partial(study_of, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_global_sources_of_random_numbers_are_seeded_for_each_trial(door: str) -> None:
    before = random.getstate(), np.random.get_state()[1].tolist()
    found = [DOORS[door](RunOptions(gpu="none", workers=n, quiet=True)) for n in (0, 1, 2)]
    assert found[0] == found[1] == found[2]
    assert len(set(map(str, found[0]))) == (2 if door == "a group" else 6)  # the numbers of a group are by place
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    here = RunOptions(workers=0, quiet=True)
    assert study_of(None, here) != study_of(None, here)


class OnCores(Listed):
    def check(self, device: str, visible: str) -> None:
        if device != "cpu":
            raise WantsCores(f"it has no code for GPU {visible}")


def test_an_experiment_may_want_the_cores_in_place_of_gpus(capsys: Any) -> None:
    outcomes = run_study(OnCores(lambda trial: {"x": 1.0}, 2), RunOptions(gpu="GPU-1"))
    assert {outcome.result.place.device for outcome in outcomes} == {"cpu"}
    assert "it has no code for GPU GPU-1" in capsys.readouterr().err


def test_nan_is_a_failure_infinity_is_not() -> None:
    values = Listed(lambda trial: {"v": (float("nan"), float("inf"))[int(trial.params["x"])]}, 2)
    (nan, inf) = run_study(values, RunOptions(workers=0, quiet=True))
    assert nan.result.error == "the objective returned NaN as v" and not nan.result.values
    assert inf.result.values == {"v": float("inf")}


def test_where_no_worker_lives_the_cause_is_told() -> None:
    with pytest.raises(StudyError, match="no module named warp_drive"):
        run_study(Toy(3, fault="cannot_build"), RunOptions(gpu="none", workers=1, quiet=True))


def test_what_cannot_be_sent_is_named() -> None:
    import threading

    lock = threading.Lock()
    with pytest.raises(UsageError, match="function of Listed cannot be sent to workers"):
        run_study(Listed(lambda trial: lock and {}), RunOptions(gpu="none", workers=1, quiet=True))


@pytest.mark.slow
def test_the_example_of_the_docstring_runs(program: Any) -> None:
    code = "\n".join(line[4:] for line in (mpitune.__doc__ or "").splitlines() if line.startswith("    "))
    done = program("-c", code, status=None, preexec_fn=on_one_core)
    assert done.stdout.startswith("{'lr': 0.0") and "'loss': " in done.stdout, done.stderr


POOLS = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from joblib import Parallel, delayed, parallel_config
import mpitune.joblib
from mpitune import Float, search

class Box:
    def __init__(self, number):
        self.number = number

def begin(number):
    global factor
    factor = number

def fold(box):
    return Box(box.number * factor)

def total(trial):
    kind = multiprocessing.get_context(KIND)
    with kind.Pool(2, begin, (3,)) as pool, ProcessPoolExecutor(2, kind, begin, (4,)) as more:
        return sum(box.number for run in (pool.map, more.map) for box in run(fold, map(Box, range(4))))

if __name__ == "__main__":
    study = search(total, {"x": Float(0, 1)}, strategy="random", n_trials=2, minimize="loss", workers=1)
    with parallel_config("mpitune", n_jobs=2):
        print(study.best.values, Parallel()(delayed(total)(None) for number in range(2)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fork", "forkserver"])
def test_a_pool_of_processes_in_a_trial_finds_what_the_script_defines(program: Any, tmp_path: Path, kind: str) -> None:
    (tmp_path / "script.py").write_text(POOLS.replace("KIND", repr(kind)))
    assert program(tmp_path / "script.py").stdout == "{'loss': 42.0} [42, 42]\n"
