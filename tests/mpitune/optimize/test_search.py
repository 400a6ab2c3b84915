"""`search`: the same trials on any layout, the same folder continues, failures are failures, bad input is one line."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpitune import Choice, Command, Float, Int, Space, When, load
from mpitune.engine import slots
from mpitune.errors import StudyError, UsageError
from mpitune.optimize.strategies import ASHA, Grid, Halving
from mpitune.settings import window_of
from mpitune.storage.history import read_journal, read_study
from mpitune.storage.journal import Journal
from mpitune.tools.status import described, look, status_of
from tests.helpers import end_searches_with, journal_lines, wait_until
from tests.mpitune.optimize.objectives import SPACE, searched


def test_a_folder_continues_with_more_trials(tmp_path: Path) -> None:
    asked: list[int] = []

    def objective(trial: Any) -> float:
        asked.append(trial.number)
        return float(trial.params["x"])

    how: dict[str, Any] = dict(results=tmp_path / "r", strategy="tpe")
    first = searched(objective, {"x": Float(0, 1)}, n_trials=3, window=2, **how)
    again = searched(objective, {"x": Float(0, 1)}, n_trials=5, **how)  # the window is in the journal
    assert asked == [0, 1, 2, 3, 4]
    assert [t.params for t in again.trials[:3]] == [t.params for t in first.trials] and len(again) == 5
    rows = (tmp_path / "r" / "trials.csv").read_text().splitlines()
    assert rows[0] == "number,state,param_x,value_loss,error" and len(rows) == 6
    fix = r"give another results folder, or RunOptions\(restart=True\) to set the old study aside, or adapt=True to use"
    for name, changed in (("seed", 1), ("strategy", "sobol"), ("window", 7)):
        with pytest.raises(UsageError, match=f"holds a study with {name} = .*: {fix}"):
            searched(objective, {"x": Float(0, 1)}, n_trials=5, **{**how, name: changed})


def test_best_pareto_report_pandas() -> None:
    def objective(trial: Any) -> dict[str, float]:
        return {"a": trial.params["x"], "b": (trial.params["x"] - 2) ** 2, "c": 1.0}

    study = searched(objective, {"x": Int(0, 4)}, strategy="grid", minimize="b", maximize="a")
    assert [t.params["x"] for t in study.pareto] == [2, 3, 4]
    with pytest.raises(UsageError, match=r"no best trial for b and a together: use study\.pareto"):
        _ = study.best
    assert "5 trials: 5 complete\nthe Pareto front:\n  trial 2: b 0, a 2 with x=2" in study.report()
    frame = study.to_pandas()
    assert list(frame["param_x"]) == [0, 1, 2, 3, 4] and list(frame["value_a"]) == [0, 1, 2, 3, 4]


def test_grids_enqueued_points_callbacks_and_constants() -> None:
    seen: list[tuple[int, int]] = []

    def stop(study: Any, trial: Any) -> bool:
        seen.append((len(study), trial.number))
        return len(study) == 4

    space = {"x": Float(0, 1), "k": Choice("a", "b"), "more": 1}
    how: dict[str, Any] = dict(strategy=Grid(points=3), enqueue=[{"x": 0.25}])
    study = searched(lambda trial: trial.params["x"] + trial.params["more"], space, **how)
    assert [t.params["x"] for t in study.trials] == [0.25, 0, 0, 0.5, 0.5, 1, 1] and study.best.values == {"loss": 1.0}
    for workers in (0, 2):  # short trials are sent ahead, so more than four may have begun
        study = searched(lambda t: 0.0, {"x": Float(0, 1)}, n_trials=3000, callbacks=[stop], workers=workers)
        assert 4 <= len(study) < 3000 and len(study) == len(seen)
        assert workers or seen[:4] == [(1, 0), (2, 1), (3, 2), (4, 3)]
        seen.clear()


@pytest.mark.parametrize(("order", "said"), [({"window": 3}, "window 3"), ({"strategy": "random", "window": 3}, "")])
def test_reports_say_the_window_where_trials_depend_on_it(tmp_path: Path, order: dict[str, Any], said: str) -> None:
    how: dict[str, Any] = {"strategy": "tpe", "n_trials": 4, "results": tmp_path / "r", **order}
    study = searched(lambda trial: trial.params["x"], {"x": Float(0, 1)}, **how)
    assert study.report().endswith(f"\n{said}") is bool(said) and study.window == said
    lines = described(status_of(tmp_path / "r", read_study(tmp_path / "r"), running=False))
    assert (f"order      {said}" in lines) == bool(said)
    page = (tmp_path / "r" / "report.html").read_text()
    assert (window_of(read_study(tmp_path / "r").header) == said and f"candidates; {said}" in page) or not said


@pytest.mark.parametrize("strategy", [ASHA(10), Halving(9)])
def test_callbacks_hear_of_each_trial_once_it_cannot_go_on(strategy: Any) -> None:
    """Of those that were pruned at its end."""

    def steps(trial: Any) -> Any:
        for step in range(1, 11):
            yield {"step": step, "loss": trial.params["x"] / step}

    heard: list[Any] = []
    how: dict[str, Any] = dict(
        strategy=strategy, n_trials=30, callbacks=[lambda study, t: heard.append((t, len(study)))], window=3
    )
    study = searched(steps, {"x": Float(0, 1)}, **how)
    assert sorted((t.number, t.state, t.values["loss"]) for t, _ in heard) == [
        (t.number, t.state, t.values["loss"]) for t in study.trials
    ]
    ends = [t.state for t, _ in heard]
    assert ends == sorted(ends) and set(ends) == {"complete", "pruned"} and [n for _, n in heard] == list(range(1, 31))


@pytest.mark.parametrize("order", [{}, {"strategy": "tpe"}])
def test_a_search_ends_by_its_time_or_its_results_and_goes_on(
    tmp_path: Path, order: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    over = tmp_path / "over"
    seconds = end_searches_with(over, monkeypatch)

    def slow(trial: Any) -> float:
        time.sleep(0.05)
        if trial.number == 9:
            over.touch()
        return float(trial.params["x"])

    space = {"x": Float(0, 1)}
    how: dict[str, Any] = dict(n_trials=200, results=tmp_path / "r", workers=2, **order)
    first = searched(slow, space, **how, timeout=seconds)
    assert 1 <= len(first) < 190 and read_study(tmp_path / "r").stopped == "its time"
    said = capsys.readouterr().out
    assert f"{len(first)} trials: " in said and "stopped by its time: the same call continues it" in said
    assert (tmp_path / "r" / "trials.csv").read_text().count("\n") == len(first) + 1
    assert "stopped by its time" in (tmp_path / "r" / "report.html").read_text()
    calls = [lambda study, trial: len(study) >= len(first) + 3]
    second = searched(slow, space, **how, callbacks=calls)
    assert len(first) + 3 <= len(second) < 200 and (order or len(second) == len(first) + 3)
    assert read_study(tmp_path / "r").stopped == "" and read_study(tmp_path / "r").complete
    assert described(look(tmp_path / "r"))[1].startswith(f"trials     {len(second)} finished, 0 of them failed, 0 miss")
    begun = read_journal(tmp_path / "r").results.keys()
    assert len(searched(slow, space, **how, callbacks=calls)) == len(second), "the same call begins nothing"
    assert read_journal(tmp_path / "r").results.keys() == begun and (order or len(begun) > len(second))
    assert len(load(tmp_path / "r").trials) == len(second)
    over.unlink()
    how = dict(n_trials=len(second), results=tmp_path / "whole")
    how |= {"strategy": "tpe", "window": 4} if "strategy" in order else {}
    whole = searched(lambda trial: float(trial.params["x"]), space, **how, timeout=seconds)
    assert [t.params for t in second.trials] == [t.params for t in whole.trials]
    assert read_study(tmp_path / "whole").stopped == ""


def test_what_is_done_was_not_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def at_last(study: Any, trial: Any) -> bool:
        return len(study) == 4

    how: dict[str, Any] = dict(strategy="grid", results=tmp_path / "r", callbacks=[at_last])
    searched(lambda trial: float(trial.params["x"]), {"x": Int(0, 3)}, **how)
    said = capsys.readouterr().out + (tmp_path / "r/report.html").read_text()
    assert "4 trials: 4 complete" in said and "stopped by" not in said
    assert b'"stopped"' not in (tmp_path / "r/journal.jsonl").read_bytes()


class Adder:
    """An object that is set up once, in each worker."""

    def __init__(self, more: Any = 1.0):
        self.more, self.ready = more, False

    def setup(self, device: str) -> None:
        self.ready = device == "cpu"

    def __call__(self, trial: Any) -> float:
        return float(trial.params["x"]) + self.more if self.ready else float("nan")


def test_classes_and_objects_are_set_up() -> None:
    for objective in (Adder, Adder(2.0)):
        how: dict[str, Any] = dict(strategy="grid", minimize="sum")
        here = searched(objective, {"x": Int(0, 2)}, **how)
        there = searched(objective, {"x": Int(0, 2)}, workers=1, **how)
        assert [t.values for t in here.trials] == [t.values for t in there.trials]
        assert here.best.values["sum"] == (1.0 if objective is Adder else 2.0)


def test_commands(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "[ $1 != 2 ] || { echo no such file; exit 3; }\n"
        "[ $1 != 9 ] || exec sleep 600\n"
        """echo begin; echo "{\\"loss\\": $(($1 + MORE))}"; echo end\n"""
    )
    command = f"env MORE={{more}} sh {script} {{x}}"
    study = searched(command, {"x": Int(0, 2), "more": 1}, strategy="grid", workers=1, results=tmp_path / "r")
    assert [t.state for t in study.trials] == ["complete", "complete", "failed"]
    assert study.best.values == {"loss": 1.0}
    assert study.trials[2].error.endswith(f"exit status 3: env MORE=1 sh {script} 2: no such file")
    with pytest.raises(StudyError, match="no end within 0.5 s"):
        searched(command, {"x": Choice(9), "more": 1}, strategy="grid", workers=1, trial_timeout=0.5)
    assert (tmp_path / "r" / "trials" / "t000001" / "output.txt").read_text().startswith("begin\n")
    for quoted in (  # what is quoted needs no shell
        """awk -v x={x} 'BEGIN {{ if (2 > 1 && x) printf "{{\\"loss\\": %d}}\\n", x }}'""",
        """sh -c 'echo 1 > /dev/null; echo "{{\\"loss\\": {x}}}" | cat'""",
    ):
        assert searched(quoted, {"x": Int(1, 2)}, strategy="grid").best.values == {"loss": 1.0}


def test_a_value_reaches_a_command_as_it_is(tmp_path: Path) -> None:
    """A shell gets it as a word."""
    values = ["; touch x", "$(touch x)", "a 'b' \"c\"", "`touch x`\n"]
    command = ["sh", "-c", 'printf %s "$1" > "$2/word"; echo "{{\\"loss\\": {y}}}"', "sh", "{x}", "{folder}"]
    space = {"x": Choice(*values), "y": Choice(-1, 2.5)}
    study = searched(command, space, strategy="grid", results=tmp_path / "r")
    assert {t.values["loss"] for t in study.trials} == {-1.0, 2.5}
    for trial in study.trials:
        assert (tmp_path / "r" / "trials" / f"t{trial.number:06}" / "word").read_text() == trial.params["x"]


@pytest.mark.slow
def test_a_command_hears_that_its_time_is_over(tmp_path: Path) -> None:
    """It is told by SIGTERM, which it can catch."""
    show = "trap 'echo cleaned up; exit 0' TERM; x={x}; sleep 1111 & wait"
    command = Command(["sh", "-c", show]).limited(5.0)  # by then the shell has begun
    with pytest.raises(RuntimeError, match=r"^no end within 5 s: .* was killed, see "):
        attempt = SimpleNamespace(link=tmp_path)
        command(SimpleNamespace(params={"x": 1}, hosts=(), folder=tmp_path, _attempt=attempt))  # type: ignore[arg-type]
    assert (tmp_path / "output.txt").read_text() == "cleaned up\n"


class Tensor:
    def item(self) -> float:
        return 1.0


LOCK = threading.Lock()


def closes_over(lock: Any) -> Any:
    return lambda trial: lock and 1.0


X = {"x": Float(0, 1)}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"space": {}}, "the space has no parameters: give"),
        ({"space": {"x": 1, "y": 2}}, "the space has no parameters but constants (x, y): give"),
        ({"space": Space(X, constraints=[lambda p: p["y"] > 0])}, "a constraint raised KeyError: 'y' for"),
        ({"minimize": ()}, 'say what is searched for: minimize="loss"'),
        ({"maximize": "loss"}, "loss is named twice in minimize and maximize"),
        ({"n_trials": 0}, "n_trials=0: give a whole number of at least 1"),
        ({"window": 0}, "window=0: give a whole number of at least 1"),
        ({"trial_timeout": 0}, "trial_timeout=0 is too small: give at least 0.001"),
        ({"results": 5}, "results=5: give the path of a folder"),
        ({"options": {"restart": True}}, "options={'restart': True}: give a RunOptions"),
        ({"strategy": Grid}, "strategy=Grid: give one with its arguments, such as mpitune.strategies.Grid(...)"),
        ({"strategy": "hyperband"}, "strategy=hyperband: give one with its arguments, such as mpitune.strategies.Hyp"),
        ({"maximise": "loss"}, "search() has no argument maximise: did you mean maximize?"),
        ({"n_trial": 2}, "search() has no argument n_trial: did you mean n_trials?"),
        ({"objective": "train '{x}"}, "cannot be divided into words: no closing quotation"),
        ({"objective": "train {x"}, "expected '}' before end of string; a brace of its own is written twice"),
        ({"objective": ["train", "{x}", 5]}, "the command has 5 among its words: give texts, such as '5'"),
        ({"objective": """echo '{"x": %s}' {x}"""}, "a brace of its own is written twice"),
        ({"timeout": -1}, "timeout=-1: give a number of seconds above 0"),
        ({"gpu": [0]}, 'gpu=[0]: give a position such as 0, or a text such as "0,1", "all" or "none"'),
        ({"gpu": "first", "workers": None}, 'gpu="first": give positions such as 0,1, names'),
        ({"gpu": 99, "workers": None}, 'gpu="99", but '),
        ({"gpu": "all"}, 'workers=1 is the number of CPU workers: add gpu="none" (two workers on a GPU: gpu="0,0")'),
        ({"callbacks": [5]}, "give a list of functions of the study and a trial"),
        ({"space": 5}, "the space is 5: give parameters by name"),
        ({"minimize": 5}, "minimize=5: give the name of a value"),
        ({"enqueue": {"x": 0.5}}, "enqueue={'x': 0.5}: give a list of points"),
        ({"strategy": "bayes"}, "strategy='bayes': give grid, random"),
        ({"strategy": "grid"}, "a grid needs to know how many values"),
        ({"enqueue": [{"z": 1}]}, "has z, which the space does not have: it has x"),
        ({"enqueue": [{"x": 7}]}, "has x = 7, which is not in Float(low=0, high=1, log=False, step=None): give"),
        ({"enqueue": [{"x": True}]}, "has x = True, which is not in Float"),
        ({"space": {"x": Choice("a", 1)}, "enqueue": [{"x": True}]}, "has x = True, which is not in Choice('a', 1)"),
        ({"space": {"x": Int(1, 9), "y": 3}, "enqueue": [{"y": 4}]}, "has y = 4: leave it out, or give it a range"),
        ({"objective": 5}, "the objective is a int: give a function"),
        ({"objective": lambda trial: None}, "correct the objective: it returned None: return {'loss': ...}"),
        ({"objective": lambda trial: {"loss": Tensor()}}, "it returned a Tensor as loss: give a number"),
        ({"objective": lambda trial: {"accuracy": 1.0}}, "it returned accuracy without loss"),
        ({"objective": lambda trial: float("nan")}, "no value: it returned NaN as loss: give float('inf') where"),
        ({"objective": lambda trial: {"loss": 1.0, 2: 2.0}}, "it returned a value called 2"),
        ({"objective": lambda trial: {"loss": 1.0, "\ud800": 2.0}}, "it returned a value called '\\ud800': give"),
        ({"objective": closes_over(LOCK)}, "lock of the objective cannot be sent to workers"),
        ({"objective": Adder(LOCK)}, "more of the objective cannot be sent to workers"),
        ({"objective": "python train.py"}, "the command does not use the parameter x: write {x}"),
        ({"objective": "python train.py {x} {y}"}, "the command has {y}, but the parameters are x"),
        *(
            ({"objective": f"train {words}"}, f"the command has {sign}, but no shell runs it: give sh the text and the")
            for words, sign in {
                "{x} | tee log": "|", "{x} 2>&1": "2>", "{x} >> log": ">>", "a; train {x}": ";", "a && b {x}": "&&",
                "< {x}": "<", "{x} &": "&",
            }.items()
        ),
        ({"objective": "true {x}"}, "its command printed no JSON object"),
        ({"devices": 5, "workers": 4}, "devices=5 for each trial, but the largest node has 4: give no more"),
        ({"devices": 0}, "devices=0: give a whole number of at least 1"),
        ({"nodes": 2}, "nodes=2 for each trial, but this job has 1: start the script with mpirun or srun"),
        ({"nodes": lambda p: 0.5}, "nodes of {'x': 0."),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_nothing_is_written(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    how: dict[str, Any] = dict(objective=lambda trial: 1.0, space=X, n_trials=2, workers=1, results=tmp_path / "r")
    if "mend" in told or "it returned" in told or "JSON" in told or "NaN" in told:
        how["workers"] = 0  # the same, and quicker
    with pytest.raises(UsageError) as error:
        searched(**{**how, **change})
    assert told in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "r").exists()


def test_numbers_of_numpy_are_numbers() -> None:
    low: Any = np.int64(0)
    space = {"x": Float(0, 1), "n": Int(low, 3), "a": Choice(np.zeros(2000), np.ones(3))}
    numbers: dict[str, Any] = dict(n_trials=np.int64(3), seed=np.int64(1), window=np.int64(2))
    study = searched(lambda trial: 1, space, enqueue=[{"x": np.float32(0.5), "n": np.int64(2)}], **numbers)
    assert len(study) == 3 and dict(study.trials[0].params, a=0) == {"x": 0.5, "n": 2, "a": 0}


def test_the_table_has_the_names_of_options(tmp_path: Path) -> None:
    how: dict[str, Any] = dict(strategy="grid")
    options = (None, "None", 1, 1.0, True, "1", len)
    space = {"x": Choice(*options), "y": When(Choice("a"), x="1")}
    study = searched(lambda trial: {"loss": 1.0, "seconds": 2.0}, space, results=tmp_path / "r", **how)
    assert [trial.params["x"] for trial in study.trials] == list(options)
    rows = (tmp_path / "r" / "trials.csv").read_text().splitlines()
    assert rows[0] == "number,state,param_x,param_y,value_loss,value_seconds,error"
    cells = [row.split(",complete,")[1].split(",")[0] for row in rows[1:]]
    assert cells == ["None", "None", "1", "1.0", "True", "1", "len"]
    assert rows[1].split(",")[3] == "" and rows[6].split(",")[3] == "a"


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_objective_that_breaks_its_contract_late_ends_the_search_which_then_goes_on(
    workers: int, tmp_path: Path
) -> None:
    """What was complete is kept. The trial that was wrong is not, so the mended objective evaluates it."""
    how: dict[str, Any] = dict(space={"x": Int(0, 5)}, strategy="grid", workers=workers, results=tmp_path / "r")

    def renamed(trial: Any) -> dict[str, float]:
        return {"loss": 1.0, "cost" if trial.number < 4 else "price": 2.0}

    with pytest.raises(UsageError, match=r"it returned loss, price, before cost, loss: return the same"):
        searched(renamed, **how)
    with pytest.raises(
        UsageError, match=r"correct the objective: it returned None: return {'loss': ...} \(trial [45]\)"
    ):
        searched(lambda trial: {"loss": 1.0, "cost": 2.0} if trial.number < 4 else None, **how)
    kept = len(journal_lines(tmp_path / "r"))
    assert kept <= 5 and (kept >= 1 or workers)  # of two workers the first may be that with the wrong trial

    def mended(trial: Any) -> dict[str, float]:
        return {"loss": float("nan") if trial.number == 5 else 1.0, "cost": 2.0}  # NaN later on is a failure

    study = searched(mended, **how)
    assert [t.state for t in study.trials] == ["complete"] * 5 + ["failed"]
    assert "no value: it returned NaN as loss" in study.trials[5].error


def test_several_devices_for_each_trial() -> None:
    """Slots of a node are joined: two CPU workers of four are one with two threads, of which there are two."""

    def objective(trial: Any) -> float:

        return float(os.environ["OMP_NUM_THREADS"]) + 10 * float(os.environ["SEARCH_WORKERS_HERE"])

    how: dict[str, Any] = dict(space={"x": Int(1, 3)}, strategy="grid")
    study = searched(objective, devices=lambda params: params["x"], workers=4, **how)
    assert [t.values["loss"] for t in study.trials] == [41.0, 22.0, 13.0]


GANGS = ("-m", "tests.mpitune.optimize.gangs")


@pytest.mark.slow
def test_trials_of_several_nodes(program: Any) -> None:
    """Of three ranks with two workers each, a trial has none, one, two or all to itself."""
    here, *others = program(*GANGS, "function", ranks=3).stdout.splitlines()
    trials = json.loads(here)
    assert others == [here] * 2 and len(trials) == 12
    assert all(values["loss"] == params["nodes"] for params, values, _ in trials)
    spans = [(values["begin"], values["end"], max(1, 2 * params["nodes"])) for params, values, _ in trials]
    for begin, _, _ in spans:
        assert sum(n for b, e, n in spans if b <= begin < e) <= 6, "more slots are in use than there are"


@pytest.mark.slow
def test_a_launcher_starts_the_command_on_its_nodes(program: Any) -> None:
    trials = json.loads(program(*GANGS, "command", ranks=3).stdout.splitlines()[0])
    assert [(v["processes"], error) for p, v, error in trials] == [(max(1, p["nodes"]), "") for p, v, error in trials]


class Learns(Grid):
    """A grid that says that it learns, so that it has a window."""

    def draws(self, problem: Any) -> Any:
        drawn = super().draws(problem)
        drawn.adaptive = True
        return drawn


@pytest.mark.parametrize(("workers", "window"), [(0, 1), (3, 2), (3, 5)])
def test_a_callback_ends_a_search_once_what_is_open_has_ended(workers: int, window: int) -> None:
    """The same trials on any layout: those that were open when the fourth was told, and no others."""
    told: list[int] = []

    def stop(study: Any, trial: Any) -> bool:
        told.append(trial.number)
        return len(study) == 4

    how: dict[str, Any] = dict(strategy=Learns(), callbacks=[stop], window=window, workers=workers)
    study = searched(lambda trial: 0.0, {"x": Int(0, 19)}, **how)
    assert len(study) == 3 + window and told == list(range(3 + window))


def test_a_worker_has_its_next_trial_before_its_result_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where trials are too long to be given ahead. The disk is so slow here that the next trial begins first."""
    begun: list[bool] = []

    def append(journal: Journal, outcomes: Any) -> Any:
        begun.append(wait_until((tmp_path / "1").exists, 30.0))
        return at_once(journal, outcomes)

    def objective(trial: Any) -> float:
        (tmp_path / str(trial.number)).touch()
        return 0.0

    at_once = Journal.append
    monkeypatch.setattr(Journal, "append", append)
    monkeypatch.setattr(slots, "SHORT", 0.0)
    searched(objective, SPACE, n_trials=4, workers=1)
    assert begun[0]
