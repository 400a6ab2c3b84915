"""Sweeps of W&B in Python: `wandb.sweep(config)` and `wandb.agent(sweep_id, function, count)`, without its server.

python -m mpitune script.py               # of an unchanged script; or in a notebook:

    from mpitune.sweeps.agents import agent, sweep
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpitune.errors import UsageError, keeping, needs
from mpitune.optimize.door import own_folder, say_kept
from mpitune.optimize.objectives import ObjectiveTrial
from mpitune.optimize.search import search
from mpitune.optimize.search_study import SearchStudy
from mpitune.optimize.tuning import require_whole
from mpitune.options import RunOptions, usual_options
from mpitune.processes.pickles import packed_call, read_call
from mpitune.processes.process import sendable
from mpitune.ranks.launch import launched
from mpitune.storage.trials import TrialRecord
from mpitune.sweeps.program import Runs
from mpitune.sweeps.reading import Read, parsed
from mpitune.sweeps.stopping import band_behind
from mpitune.trial import COMPLETE, Evaluation


@dataclass
class _Made:
    """A sweep of this process."""

    read: Read
    folder: tempfile.TemporaryDirectory[str] | None = None  # for a second agent, once one had no results folder
    n_asked: int = 0  # how many trials its agents have run


WHERE = "the configuration of wandb.sweep"
_sweeps: dict[str, _Made] = {}


class _Stopped(BaseException):
    """A run is not among the best of its band. No `except Exception` of a function takes it."""


class Called(Runs):
    """Calls a function for each trial, as W&B's agent does. Runs lie in `wandb` of the working folder."""

    keeps_worker = prints_plainly = True

    def __init__(self, function: Callable[[], Any], read: Read, sweep_id: str):
        super().__init__(read[0], read[2], sweep_id)
        self.function = function

    def __getstate__(self) -> dict[str, Any]:
        arrays: dict[str, Any] = {}
        return {**vars(self), "function": packed_call(self.function, arrays), "arrays": arrays}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, function=read_call(state["function"], state.pop("arrays"), writeable=True))

    def called(self) -> Mapping[str, Any]:
        """What a journal knows the code of."""
        return {"objective": self.function}

    def __call__(self, trial: ObjectiveTrial) -> Evaluation:
        with needs("wandb"):
            import wandb
        run = self.new_run(trial)
        params = Path(os.environ.get("WANDB_DIR", ""), "wandb", f"sweep-{self.sweep_id}", f"config-{run}.yaml")
        self.write_config(trial, params)
        with _environ(self.variables(run, params)), self._watched(trial):
            wandb.teardown()  # W&B reads the variables once
            try:
                self.function()
            except _Stopped:
                pass
            except (Exception, SystemExit) as error:
                if not isinstance(error, SystemExit) or error.code:  # which is a success without a status
                    wandb.finish(exit_code=1)
                    if "No API key configured" in str(error):
                        raise self.error(str(error)) from error
                    raise
            finally:
                wandb.finish()
                wandb.teardown()  # only now its file is whole
        metric, band = self.look(trial, Path(), run, True)
        return replace(self.answer(trial, metric, band), read=("number",))

    @contextmanager
    def _watched(self, trial: ObjectiveTrial) -> Iterator[None]:
        """Stop the run where it logs a value that is not good enough."""
        from wandb import Run

        logged, log, leave, name = dict[int, float](), Run.log, Run.__exit__, self.sweep.metric.name

        def watched(run: Any, data: Any, step: int | None = None, *args: Any, **more: Any) -> None:
            value, at = data, run.step if step is None else step
            log(run, data, step, *args, **more)
            with suppress(KeyError, TypeError):
                for part in [name] if name in data else name.split("."):
                    value = value[part]
                if math.isfinite(value):
                    logged[at] = self.sign * float(value)
            if band_behind(list(logged.values()), trial.limits) is not None:
                raise _Stopped

        def left(run: Any, kind: Any, *raised: Any) -> Any:
            return leave(run, *((None,) * 3 if kind is _Stopped else (kind, *raised)))  # without its traceback

        if trial.limits:
            Run.log, Run.__exit__ = watched, left
        try:
            yield
        finally:
            Run.log, Run.__exit__ = log, leave


@contextmanager
def _environ(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def sweep(sweep: Any, entity: str | None = None, project: str | None = None, prior_runs: Any = None) -> str:
    """`wandb.sweep`: the id of a sweep that `agent` of this process knows. The same script gives the same ids.

    Args:
        sweep: the configuration, a dictionary, or what returns one.
        entity: is given to the runs.
        project: is given to the runs.
        prior_runs: must be left out, as they are on the server.

    Raises:
        UsageError: for what a sweep file must not have either.

    Example:
        >>> from mpitune.sweeps.agents import sweep
        >>> len(sweep({"method": "grid", "parameters": {"lr": {"values": [0.1, 0.2]}}}, project="p"))
        Create sweep with ID: 0c2ba2ee
        8
    """
    if prior_runs:
        raise UsageError("wandb.sweep has prior_runs, which are on W&B's server: leave them out")
    content = sweep() if callable(sweep) else sweep
    try:
        content = json.loads(json.dumps(content))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{WHERE} is no JSON ({error}): give numbers, texts, lists") from error
    if isinstance(content, dict):
        content |= {name: value for name, value in (("entity", entity), ("project", project)) if value}
    text = json.dumps([len(_sweeps), content], sort_keys=True)
    sweep_id = hashlib.sha256(text.encode()).hexdigest()[:8]
    _sweeps[sweep_id] = _Made(parsed(lambda: content, WHERE))
    if not launched().rank:
        print("Create sweep with ID:", sweep_id)
    return sweep_id


def agent(
    sweep_id: str | None = None,
    function: Callable[[], Any] | None = None,
    entity: str | None = None,
    project: str | None = None,
    count: int | None = None,
    forward_signals: bool = False,
    *,
    window: int | None = None,
    options: RunOptions | None = None,
) -> None:
    """`wandb.agent`: run so many trials of a sweep on all devices of all nodes. See docs/sweeps.md.

    Args:
        sweep_id: what `sweep` has returned; an earlier agent of it is continued.
        function: is called for each trial.
        entity: has no effect.
        project: has no effect.
        count: how many trials, `run_cap` in all at most; without one as many as that, or the grid, has.
        forward_signals: has no effect.
        window: how many trials may be open.
        options: how it is run; `results` is a folder that keeps the trials.

    Raises:
        UsageError: for a sweep of the server, and one without an end.
    """
    name = str(sweep_id).rpartition("/")[2]
    if name not in _sweeps:
        raise UsageError(
            f"wandb.agent: sweep_id={sweep_id!r:.100} is none of this script, and W&B's server is not asked: take "
            "the id that wandb.sweep(config) returns here, or start its file by python -m mpitune run sweep.yaml"
        )
    if not callable(function):
        fix = "give a function, or start a file by python -m mpitune run sweep.yaml"
        raise UsageError(f"wandb.agent: function={function!r:.100}: {fix}")
    require_whole("count", count, 1)
    made, read = _sweeps[name], _sweeps[name].read
    n_trials = read[0].run_cap if count is None else min(made.n_asked + count, read[0].run_cap or sys.maxsize)
    options = own_folder(options or usual_options(keeps=True, quiet=True), name)
    if options.workers != 0:
        sendable("the function", function, "make it within the function", lambda thing: packed_call(thing, {}))
    say_kept(function, "log it by wandb.log", options)
    kept = options.results is not None
    if not kept:
        made.folder = made.folder or tempfile.TemporaryDirectory(prefix="sweep-")
        options = replace(options, results=Path(made.folder.name))
    with keeping(kept):
        searched(read, Called(function, read, name), n_trials, window, None, options)
    made.n_asked = n_trials or made.n_asked


def searched(
    read: Read, objective: Any, n_trials: int | None, window: int | None, timeout: float | None, options: RunOptions
) -> SearchStudy:
    """The study of what `read` says, whatever runs its trials. Raises what `search` does."""
    sweep, space, _, strategy = read
    metric, own = sweep.metric, sweep.mpitune
    sign, target = -1 if metric.goal == "maximize" else 1, metric.target
    if n_trials is None and (method := own.strategy or sweep.method) != "grid":
        how = "count=50" if isinstance(objective, Called) else "--trials 50"
        raise UsageError(f"a sweep by {method} has no end: give {how}, or run_cap")

    def reached(study: SearchStudy, trial: TrialRecord) -> bool:
        return target is not None and trial.state == COMPLETE and sign * trial.values[metric.name] <= sign * target

    return search(
        objective, space, strategy=strategy, n_trials=n_trials, seed=own.seed, window=window, timeout=timeout,
        minimize=metric.name if sign > 0 else (), maximize=metric.name if sign < 0 else (),
        devices=own.devices, nodes=own.nodes, callbacks=[] if target is None else [reached], options=options,
    )  # fmt: skip
