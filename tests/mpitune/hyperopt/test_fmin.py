"""`fmin` here leaves what hyperopt's leaves, on any layout, and goes on from a folder."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hyperopt import JOB_STATE_ERROR, JOB_STATE_NEW, STATUS_OK, Ctrl, Trials, atpe, hp, pyll, rand, space_eval, tpe
from hyperopt.fmin import fmin_pass_expr_memo_ctrl, generate_trials_to_calculate

from mpitune import RunOptions
from mpitune.errors import UsageError
from mpitune.hyperopt import fmin
from mpitune.hyperopt.minimizing import hyperopts
from mpitune.hyperopt.worker import read_kept
from mpitune.optimize import door
from mpitune.storage.history import read_study
from tests.mpitune.hyperopt.made import HERE, difference

TWO, LOCK = RunOptions(gpu="none", workers=2, quiet=True), threading.Lock()  # which workers make again
X = hp.uniform("x", -1, 1)


@pyll.scope.define
def tenfold_of_a_script(value: float) -> float:
    return value * 10


def square(x: float) -> float:
    return x**2


def call(
    function: Any = square, space: Any = X, algo: Any = tpe.suggest, n: Any = 12, seed: int = 1, **more: Any
) -> Any:
    arguments = {"fn": function, "space": space, "algo": algo, "max_evals": n, "verbose": False, **more}
    return {"rstate": np.random.default_rng(seed), **arguments}


def again(**more: Any) -> Any:
    """As the same command in another process."""
    door.studies_in.clear()
    return fmin(**more)


@pytest.mark.parametrize("seed", range(14))
def test_with_a_window_of_1_all_is_as_by_hyperopt_alone(seed: int) -> None:
    assert not difference(seed)


def test_trials_see_those_before_their_window_alone() -> None:
    seen: list[tuple[int, list[int], int]] = []

    def looks(ids: list[int], domain: Any, trials: Trials, number: int) -> Any:
        states = [doc["result"]["status"] for doc in trials.trials]
        seen.append((ids[0], [n for n, state in enumerate(states) if state == STATUS_OK], len(states)))
        return rand.suggest(ids, domain, trials, number)

    fmin(**call(algo=looks), window=4, options=TWO)
    assert seen == [(n, list(range(n - 3)), n) for n in range(12)]


def test_a_folder_continues_it_in_another_process(tmp_path: Path) -> None:
    more = {"rstate": None}  # the folder keeps one
    options = RunOptions(gpu="none", workers=0, quiet=True, results=tmp_path / "r")
    first, whole, rest = Trials(), Trials(), Trials()
    again(**call(n=5, trials=first, **more), window=2, options=options)
    again(**call(n=12, trials=whole, **more), window=2, options=options)
    assert whole.losses()[:5] == first.losses() and len(whole) == 12
    n = len(read_study(tmp_path / "r").results)
    again(**call(n=12, trials=rest, **more), window=2, options=options)
    assert rest.losses() == whole.losses() and rest.vals == whole.vals
    assert len(read_study(tmp_path / "r").results) == n
    for other, words in (
        (call(space=hp.uniform("x", -1, 2), **more), "holds a study with space = 0 float.* not 0 float"),
        (call(), "with rstate = None "), (call(trials=rest, **more), "with trials = 0, not 12"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            again(**other, window=2, options=options)


def test_jobs_that_join_in_one_instant_have_one_seed_and_window(tmp_path: Path) -> None:
    jobs = [RunOptions(gpu="none", workers=n, results=tmp_path / "r", join=True) for n in (2, 3)]
    first, second = (door.begun(options, None, None) for options in jobs)
    assert first == second and first[1] == 4 and door.begun(jobs[1], 5, None) == (5, 4)


def test_a_folder_says_what_it_has_as_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def objective(x: float) -> Any:
        files = {"model": b"\x00\xff", "other": {1, 2}}
        result = {"loss": np.float32(x), "status": STATUS_OK, "made": Path("/a"), "deep": {"array": np.ones(2)}}
        return {**result, "attachments": files}

    options = RunOptions(gpu="none", workers=0, quiet=True, results=tmp_path / "r")
    for n, made in enumerate((Path("/a"), "/a")):
        trials = Trials()
        again(**call(objective, n=2, trials=trials), options=options)
        assert trials.results[1]["made"] == made and ("texts for made, deep, " in capsys.readouterr().err) == bool(n)
        attachments = trials.trial_attachments(trials.trials[1])
        assert attachments["model"] == b"\x00\xff" and attachments["other"] == ("{1, 2}" if n else {1, 2})


def test_what_has_ended_it_ends_it_again(tmp_path: Path) -> None:
    def objective(x: float) -> float:
        if x > 0.5:
            raise ValueError("on purpose")
        return x

    options, counts = RunOptions(gpu="none", workers=0, quiet=True, results=tmp_path / "r"), []
    for says in ("^on purpose", "has raised <class 'ValueError'> in another process: on purpose"):
        trials = Trials()
        with pytest.raises((ValueError, RuntimeError), match=says):
            again(**call(objective, n=12, trials=trials), options=options)
        counts.append(len(trials._dynamic_trials))
    assert counts[0] == counts[1] < 12


def test_what_a_script_may_ask_for() -> None:
    earlier = Trials()
    fmin(**call(n=6, trials=earlier), options=HERE)
    assert fmin(**call(n=12, trials=earlier), options=TWO)["x"] == earlier.argmin["x"] and len(earlier) == 12
    space = {"k": hp.choice("k", [{"a": pyll.scope.tenfold_of_a_script(X)}, {"b": hp.randint("b", 3)}])}
    best = fmin(**call(lambda point: abs(point["k"].get("a", 99) - 5), space, n=40, seed=3), options=TWO)
    assert space_eval(space, best)["k"]["a"] == pytest.approx(5, abs=3)
    point = fmin(**call(lambda p: p["k"].get("b", 9), space, return_argmin=False), options=HERE)
    assert point["k"]["b"] == 0
    assert fmin(**call(algo=atpe.suggest, n=6), window=2, options=HERE) == fmin(
        **call(algo=atpe.suggest, n=6), window=2, options=TWO
    )


def test_an_objective_has_a_control_of_its_trial() -> None:
    @fmin_pass_expr_memo_ctrl
    def objective(expr: Any, memo: Any, ctrl: Ctrl) -> Any:
        ctrl.attachments["number"] = ctrl.current_trial["tid"]
        ctrl.checkpoint({"loss": 1.0})
        assert ctrl.trials._exp_key == "own"
        return square(pyll.rec_eval(expr, memo=memo))

    @fmin_pass_expr_memo_ctrl
    def injects(expr: Any, memo: Any, ctrl: Ctrl) -> Any:
        ctrl.inject_results([None], [{"loss": 0.0, "status": STATUS_OK}], [{"idxs": {}, "vals": {}}], [9])
        return 1.0

    trials = Trials(exp_key="own")
    fmin(**call(objective, n=4, trials=trials), options=TWO)
    assert [trials.trial_attachments(doc)["number"] for doc in trials.trials] == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="use points_to_evaluate"):
        fmin(**call(injects), options=HERE)


def test_what_an_objective_raises_ends_the_call_with_its_trial() -> None:
    def raises(x: float) -> float:
        if x > 0.3:
            raise KeyError("too large")
        return x

    alone, trials = Trials(), Trials()
    for how in (partial(hyperopts, trials=alone), partial(fmin, trials=trials, window=4, options=TWO)):
        with pytest.raises(KeyError, match="too large"):
            how(**call(raises, algo=rand.suggest))
    errors = [[(doc["state"], doc["misc"].get("error")) for doc in each._dynamic_trials] for each in (alone, trials)]
    assert errors[0] == errors[1] and errors[0][-1][0] == JOB_STATE_ERROR and trials.losses() == alone.losses()
    points = generate_trials_to_calculate([{"x": 0.5}, {"x": 0.1}])
    with pytest.raises(KeyError):
        fmin(**call(raises, trials=points), options=HERE)
    assert [doc["state"] for doc in points._dynamic_trials] == [JOB_STATE_ERROR, JOB_STATE_NEW]
    with pytest.raises(ZeroDivisionError):
        fmin(**call(early_stop_fn=lambda trials: 1 / 0), options=HERE)
    with pytest.raises(ZeroDivisionError):
        fmin(**call(algo=lambda *all_: 1 / 0), options=HERE)


@pytest.mark.parametrize(("word", "options"), [("SIGKILL", TWO), ("SystemExit: 3", TWO), ("SystemExit: 3", HERE)])
def test_a_worker_that_ends_in_a_trial_leaves_the_others(word: str, options: RunOptions) -> None:
    end = (lambda: sys.exit(3)) if "Exit" in word else lambda: os.kill(os.getpid(), signal.SIGKILL)
    trials = Trials()
    fmin(**call(lambda x: x if x < 0.7 else end(), algo=rand.suggest, trials=trials), window=3, options=options)
    states = [doc["misc"].get("error") for doc in trials._dynamic_trials]
    assert len(states) == 12 and any(states) and word in next(filter(None, states))[1] and len(trials) < 12


def test_its_time_and_its_losses_end_it(tmp_path: Path) -> None:
    trials, begin = Trials(), time.monotonic()
    fmin(**call(lambda x: time.sleep(0.1) or x, n=None, timeout=1, trials=trials), window=4, options=HERE)
    assert 1 <= len(trials) < 40 and time.monotonic() - begin < 20
    assert sorted(trials._ids) == list(range(len(trials)))  # none that was open is left
    fmin(**call(lambda x: time.sleep(0.3) or x, n=9, timeout=1), window=1, options=replace(HERE, results=tmp_path))
    assert read_study(tmp_path).stopped == "its time"
    at_once, left = Trials(), Trials()
    fmin(**call(loss_threshold=0.01, n=50, seed=3, trials=at_once), window=1, options=HERE)
    fmin(**call(loss_threshold=0.01, n=50, seed=3, trials=left, algo=rand.suggest), window=7, options=TWO)
    for losses in (left.losses(), at_once.losses()):
        assert losses[-1] < 0.01 <= min(losses[:-1])


def slow_to_make() -> Callable[[float], float]:
    time.sleep(1.5)
    return square


class SlowInWorkers:
    """A worker needs longer than the call has time to make it."""

    def __reduce__(self) -> Any:
        return slow_to_make, ()

    def __call__(self, x: float) -> float:
        raise NotImplementedError


def test_its_time_begins_with_its_first_trial() -> None:
    one = RunOptions(gpu="none", workers=1, quiet=True)
    fmin(**call(SlowInWorkers(), n=None, timeout=1, trials=(trials := Trials())), window=1, options=one)
    assert len(trials) > 3


KEPT = RunOptions(gpu="none", workers=0, quiet=True, results=Path("kept"))


class OfOthers(Trials):  # type: ignore[misc]
    asynchronous = True


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "workers of its own": (lambda: call(trials=OfOthers()), "OfOthers has workers of its own"),
    "an objective": (lambda: call(partial(lambda made, x: x, (n for n in [1]))), "cannot be sent to workers"),
    "a point": (lambda: call(points_to_evaluate=[{"x": object()}]), "x is <object"),
    "a window": (lambda: call() | {"window": 0}, "window=0: give a whole number"),
    "a number": (lambda: call(rstate=42), r"rstate=42: give numpy.random.default_rng\(42\)$"),
    "two files": (lambda: call(trials_save_file="f") | {"options": KEPT}, "both keep the trials: leave one"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_is_refused_before_the_first_trial(what: str) -> None:
    make, text = REFUSED[what]
    with pytest.raises(UsageError, match=text):
        fmin(**{"options": HERE, **make()})


def test_what_cannot_be_sent_back_is_a_text(capfd: pytest.CaptureFixture[str]) -> None:
    trials = Trials()
    how = call(lambda x: {"loss": x, "status": STATUS_OK, "lock": LOCK}, n=1, trials=trials)
    fmin(**how, options=TWO)
    assert "lock" in trials.results[0]["lock"] and "trial 0: lock cannot be sent" in capfd.readouterr().err


@pytest.mark.parametrize("content", [None, [], {"result": 1}, {"begun": "x"}])
def test_a_journal_of_others_is_refused(content: Any) -> None:
    with pytest.raises(UsageError, match="trial 3 in the journal is none that hyperopt could have"):
        read_kept(content, 3)


SCRIPT = """
import numpy as np
from hyperopt import Trials, fmin, hp, rand, tpe

def inner(x):
    return (x - 1) ** 2

def outer(x):
    best = fmin(inner, hp.uniform("y", 0, x), rand.suggest, 3, rstate=np.random.default_rng(1), verbose=False)
    return best["y"]

trials = Trials()
print(fmin(outer, hp.uniform("x", 0, 1), tpe.suggest, 5, trials=trials, rstate=np.random.default_rng(1)), len(trials))
print(trials.fmin(inner, hp.uniform("y", 0, 1), max_evals=8, rstate=np.random.default_rng(2)), len(trials))
trials.asynchronous = True
trials.fmin(inner, hp.uniform("y", 0, 1), max_evals=9)
"""


@pytest.mark.parametrize("ranks", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_script_needs_no_change(ranks: int, program: Any, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = ["-m", "mpitune", "--window", "2", "--workers", "0" if not ranks else "1", str(tmp_path / "script.py")]
    done = program(*command, ranks=ranks, status=2)
    assert "Trials has workers of its own, which are not here: give Trials()" in done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert [line.rpartition(" ")[2] for line in lines] == ["5", "8"] and "Traceback" not in done.stderr
