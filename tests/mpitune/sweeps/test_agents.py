"""`wandb.sweep` and `wandb.agent` of a script: the same trials on any layout; later agents go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest

from mpitune import RunOptions
from mpitune.errors import UsageError
from mpitune.optimize import door
from mpitune.storage.history import read_study
from mpitune.sweeps import agents
from mpitune.sweeps.agents import agent, sweep
from mpitune.tools.doors import DOORS
from tests.helpers import table_without_run

# Imported by what tests run: to do so in each process that collects them takes a second.
pytestmark = pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")

CONFIG: dict[str, Any] = {
    "method": "random",
    "metric": {"name": "val.loss", "goal": "minimize"},
    "parameters": {"lr": {"min": 0.0, "max": 1.0}, "net": {"parameters": {"units": {"values": (1, 2, 3)}}}},
    "early_terminate": {"type": "hyperband", "min_iter": 2, "eta": 2},
}
SCRIPT = f"""
import wandb

def train():
    with wandb.init(config={{"lr": 5, "other": 2}}) as run:
        config = wandb.config
        assert config["lr"] < 1 and config.other == 2 and run.sweep_id == sweep_id
        for epoch in range(4):
            try:
                run.log({{"val": {{"loss": config.lr + config.net["units"] / (epoch + 1)}}}})
            except Exception:
                print("stopped as an error")
        print("ran", run.name, epoch)

wandb.login()
sweep_id = wandb.sweep({CONFIG}, project="p")
wandb.agent(sweep_id, function=train, count=4)
wandb.agent(f"me/p/{{sweep_id}}", train, count=4)

def short():
    wandb.init()
    wandb.log({{"loss": wandb.config.n}})
    wandb.summary["loss"] = -wandb.config.n

    raise SystemExit  # as a program ends

grid = {{"method": "grid", "metric": {{"name": "loss"}}, "parameters": {{"n": {{"values": [1, 2]}}}}}}
wandb.agent(wandb.sweep(lambda: grid), short)
wandb.init().finish()  # without a key
wandb.agent("abcd1234", train, count=5)
"""


@pytest.fixture(autouse=True)
def _begun_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As another process, in a folder of its own."""
    monkeypatch.setattr(agents, "_sweeps", {})
    monkeypatch.setenv("WANDB_X_DISABLE_STATS", "true")
    monkeypatch.chdir(tmp_path)
    door.studies_in.clear()


@pytest.mark.slow
def test_a_script_is_the_same_on_any_layout_and_goes_on(program: Any, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    for name, how, ranks in (("here", "0", 0), ("two", "2", 0), ("two", "1", 2)):
        command = ["-m", "mpitune", "--window", "3", "--workers", how, "--results", name, "script.py"]
        done = program(*command, cwd=tmp_path, ranks=ranks, status=2)
        assert "abcd1234' is none of this script" in done.stderr and "Traceback" not in done.stderr
        assert "stopped as an error" not in done.stdout
    assert "ran" not in done.stdout  # as all is known
    tables = [
        [table_without_run(tmp_path / name / part / "trials.csv") for part in ("", "study-2")]
        for name in ("here", "two")
    ]
    assert tables[0] == tables[1] and (len(read_study(tmp_path / "two").results)) == 8
    states = [line.split(",")[1] for line in (tmp_path / "two/trials.csv").read_text().splitlines()[1:]]
    assert 0 < states.count("pruned") < 6 and states.count("complete") + states.count("pruned") == 8
    ends = [
        line.rpartition(",")[0].rpartition(",")[2]
        for line in (tmp_path / "two/study-2/trials.csv").read_text().splitlines()
    ]
    assert ends[1:] == ["-1.0", "-2.0"]
    runs = list(tmp_path.glob("wandb/offline-run-*"))
    assert len(runs) == 2 * 10 + 3 and list(tmp_path.glob("wandb/sweep-*/config-*.yaml"))


HERE, TAKEN, LOCK, HIST = RunOptions(gpu="none", workers=0, quiet=True), (n for n in [1]), Lock(), list[float]()


def opened() -> Any:
    """W&B as a script finds it, without a key."""
    import wandb

    package = SimpleNamespace(**{**vars(wandb), "Api": wandb.Api})
    DOORS["wandb"](package)
    return package


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a sweep of the server": (lambda: agent("me/p/x1y2z3a4", print, count=2), "x1y2z3a4' is none of this script"),
    "no end": (lambda: agent(sweep(CONFIG), print), "by random has no end: give count=50, or run_cap$"),
    "a count": (lambda: agent(sweep(CONFIG), print, count=0), "count=0: give a whole number"),
    "no function": (lambda: agent(sweep(CONFIG), count=2), "function=None: give a function, or start a file"),
    "no callable": (lambda: agent(sweep(CONFIG), "train", count=2), "function='train': give a function"),
    "no id": (lambda: agent(function=print), "sweep_id=None is none of this script"),
    "a generator": (lambda: agent(sweep(CONFIG), lambda: TAKEN, count=2), "TAKEN of the function .*: make it within"),
    "a method": (lambda: sweep(CONFIG | {"method": "bayesian"}), "wandb.sweep: method is wrong, .*: give grid or"),
    "no JSON": (lambda: sweep(CONFIG | {"parameters": {"x": {"value": print}}}), "is no JSON"),
    "no dictionary": (lambda: sweep("sweep.yaml"), "wandb.sweep"),
    "earlier runs": (lambda: sweep(CONFIG, prior_runs=["a"]), "prior_runs, which are on W&B's server"),
    "the server": (lambda: opened().Api(), "wandb.Api needs W&B's server"),
    "a controller": (lambda: opened().controller("x"), "wandb.controller needs W&B's server"),
    "no metric": (lambda: agent(sweep(CONFIG), int, count=2, options=HERE), "nothing: .* not in mode disabled"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_is_refused_in_one_line(what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # which may have a key
    run, text = REFUSED[what]
    with pytest.raises(UsageError, match=text) as error:
        run()
    assert "\n" not in str(error.value)


def test_a_function_prints_and_one_that_fails_is_a_failed_trial(capfd: pytest.CaptureFixture[str]) -> None:
    def train() -> None:
        import wandb

        wandb.init()
        HIST.append(wandb.config.lr)
        with LOCK:
            print("\nit trains")
        if wandb.config.lr > 0.4:
            raise ValueError("too large")
        wandb.log({"val.loss": wandb.config.lr})

    grid = CONFIG | {"early_terminate": None, "parameters": {"lr": {"values": [0.1, 0.5]}}, "method": "grid"}
    for options in (replace(HERE, workers=2), replace(HERE, results=Path("kept"))):
        agent(sweep(grid), train, options=options)
        printed = (text := "".join(capfd.readouterr())).splitlines()
        assert ("stores HIST, which the script does not see" in text) != bool(options.results), "once"
        assert "it trains" in printed and sum("results: " in line for line in printed) == bool(options.results)
    results = read_study(Path("kept")).results
    assert [result.failed for _, result in sorted(results.items())] == [False, True]


def test_a_later_agent_goes_on_and_a_run_is_compared_by_its_goal() -> None:
    def train() -> None:
        import wandb

        wandb.init()
        for epoch in range(4):
            wandb.log({"val.loss": wandb.config.lr + epoch})

    goal = {"name": "val.loss", "goal": "maximize"}
    highest = {"metric": goal, "parameters": {"lr": {"values": [2, 1, 3]}}, "run_cap": 4}
    ids = [sweep(CONFIG | highest) for _ in range(2)]
    for sweep_id in (ids[0], ids[1], ids[0]):
        agent(sweep_id, train, count=3, window=1, options=replace(HERE, results=Path("kept")))
    first, second = read_study(Path("kept")), read_study(Path("kept/study-2"))
    steps = [(trial.params["lr"], len(first.results[key].ending.steps)) for key, trial in sorted(first.trials.items())]
    assert steps == [(2, 4), (3, 4), (1, 2), (2, 4)] and len(second.results) == 3
