"""`search`: any objective, any strategy, on all devices, the same result on any layout."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mpitune.devices.choose import choose
from mpitune.engine.coordinator import why_none
from mpitune.errors import StudyError, UsageError
from mpitune.identity import header_text, require_identity
from mpitune.limit import SearchLimit
from mpitune.optimize.commands import Command
from mpitune.optimize.search_study import SearchStudy
from mpitune.optimize.spaces import Space
from mpitune.optimize.strategies import strategy_of
from mpitune.optimize.strategies.base import Problem, Strategy
from mpitune.optimize.strategies.plain import Sampling
from mpitune.optimize.tuning import (
    Alike,
    Callback,
    LeadersPart,
    Tuning,
    WorkersPart,
    described,
    problem_of,
    require_whole,
)
from mpitune.options import RunOptions, of_script, usual_options
from mpitune.processes.process import sendable
from mpitune.ranks.launch import launched
from mpitune.settings import require_seconds
from mpitune.storage.files import TRIALS
from mpitune.storage.lines import read_header
from mpitune.studies import advice, on_all_ranks, run_study
from mpitune.studies import join as wires
from mpitune.trial import Gang

KILL_S = 30.0  # for a command to end that has taken too long
JOINED_SIZE = 32  # of a window where nobody knows how many jobs will join
Need = int | Callable[[Mapping[str, Any]], int]  # of each trial, or of its parameters


@on_all_ranks("callbacks", "alike")
def search(
    objective: Any,
    space: Space | Mapping[str, Any],
    *,
    strategy: Any = "random",
    n_trials: int | None = None,
    minimize: str | Sequence[str] = (),
    maximize: str | Sequence[str] = (),
    seed: int = 0,
    results: str | Path | None = None,
    workers: int | None = None,
    gpu: str | int | None = None,
    devices: Need = 1,
    nodes: Need = 0,
    trial_timeout: float | None = None,
    callbacks: Iterable[Callback] = (),
    enqueue: Iterable[Mapping[str, Any]] = (),
    window: int | None = None,
    together: int | None = None,
    alike: Alike | None = None,
    adapt: bool = False,
    changed: str | Iterable[str] = (),
    join: bool = False,
    track: str | Iterable[str] = (),
    timeout: float | None = None,
    options: RunOptions | None = None,
) -> SearchStudy:
    """Search a space for the best values of an objective, on all devices of this machine or of an MPI job.

    Under mpirun or srun every rank calls it, as often as the others, and all get the study. Trials depend on the
    seed, the strategy and `window` alone: what ended first tells the strategy nothing.

    Args:
        objective: A function of an `ObjectiveTrial`, a generator of one that yields its values after each step, a
            class or object with `setup(device)`, or a command (see `mpitune.Command`).
        space: Parameters by name, or a `Space` with constraints.
        strategy: "random", "grid", "sobol", "tpe", "gp", "cmaes", "nsga2", a `Strategy` of
            `mpitune.strategies`, or a sampler of Optuna.
        n_trials: The most trials; a grid needs none. A sampler of Optuna that stops its study ends the search earlier.
        minimize: Names of values to minimize; where there are several goals `study.pareto` is the answer.
        maximize: Names of values to maximize.
        seed: The seed of all that is random.
        results: Folder that keeps the study, so that the same call continues it; its report is printed at the end, once
            for all ranks. None keeps and prints nothing.
        workers: Worker processes of each node, 0 for none: everything in this process. For a debugger say
            `options=RunOptions(debug=True)`, which also raises what the objective raises.
        gpu: GPUs of each node, as `RunOptions.gpu`, or the position of one; by default the first, else the CPU.
        devices: GPUs, or CPU slots, that each trial has to itself, on one node; or a function of its parameters.
        nodes: Whole nodes that each trial has to itself, 0 for none; or a function of its parameters. A command is
            then started by its launcher.
        trial_timeout: Seconds without a result after which a trial is killed, and tried once more. With
            workers=0 this holds for commands alone.
        callbacks: Called on rank 0 with the study so far and each trial that has ended, in the order told; one that
            returns True ends the search: a grid, random or Sobol as if no later trial had run, others with what
            is open.
        enqueue: Points to begin with; parameters that they leave out are drawn. A number that is on no step of its
            range is evaluated as given, and samplers learn from it as the nearest that is.
        window: So many trials, or stages of them, are open at a time: each is proposed when the results of all but the
            last `window` before it are known. By default what the journal says, at the first start twice the number of
            slots (one slot: 1). More keeps devices busier where trials differ in length; less lets the strategy
            learn sooner.
        together: An objective takes a list of so many trials (int, at least 1) and returns a list of as many values, in
            their order. The list always has this length: where there are fewer trials, the first one also stands in the
            places that are left. A trial's place follows from the order in which trials are proposed, so results depend
            on neither layout nor failures. `trial_timeout` is so many times longer. A strategy that learns proposes so
            many trials at a time, so `window` is best a multiple of it.
        alike: A function of a trial's parameters that returns a number, a text or a tuple of them: trials for which it
            is equal are in one list. By default all are alike.
        adapt: The study in `results` has another space, strategy, goal or seed: known results that count here are used,
            not evaluated again.
        changed: Functions that were changed since the study began, by name, whose known results still count.
        join: Work on the study in `results` beside other jobs that make the same call, now or later. Each returns the
            whole study; a job may end at any time, and others go on with its work.
        track: Where the study is written while it runs: "mlflow:FOLDER", "tensorboard:FOLDER", "wandb", or several.
        timeout: Seconds of this call, after which no trial begins any more; those that run may end. The same call
            continues the study in `results`, for as long again.
        options: All else about how it is run.

    Returns:
        The study, on every rank.

    Raises:
        UsageError: The arguments, the machine or the results folder are not as they should be; `together` with a
            command, a generator, a strategy that stops trials early, `devices` or `nodes`; an
            objective that returns a list of another length; `alike` without `together`.
        StudyError: All trials have failed, or it cannot go on. The text has the first failure.
        KeyboardInterrupt, SystemExit: As `mpitune.run_study`.

    Example:
        >>> from mpitune import Float, Int, search
        >>> def objective(trial):
        ...     return {"loss": (trial.params["x"] - 1) ** 2 + trial.params["n"]}
        >>> space = {"x": Float(0, 4, step=0.5), "n": Int(1, 3)}
        >>> study = search(objective, space, strategy="grid", minimize="loss", workers=0)
        >>> len(study), study.best.params, study.best.values
        (27, {'x': 1.0, 'n': 1}, {'loss': 1.0})
    """
    if options is None:
        options = usual_options(keeps=False) if workers is None and gpu is None else RunOptions()
    window = of_script.window(window)
    if not isinstance(options, RunOptions):
        raise UsageError(f"options={options!r:.100}: give a RunOptions, such as RunOptions(restart=True)")
    if not isinstance(results, str | os.PathLike | None):
        raise UsageError(f"results={results!r:.100}: give the path of a folder")
    if not isinstance(adapt, bool):
        raise UsageError(f"adapt={adapt!r:.100}: give True or False")
    own: dict[str, Any] = {
        "gpu": "none" if workers is not None and gpu is None and options.gpu is None else gpu, "workers": workers,
        "trial_timeout": trial_timeout, "results": None if results is None else Path(results),
        "adapt": adapt or None, "changed": changed or None, "join": join or None, "track": track or None,
    }  # fmt: skip
    transport = wires(options)
    with transport.refusing_together():
        options = replace(options, **{name: value for name, value in own.items() if value is not None})
    callbacks = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
    objective, options = _command(objective, options, nodes)
    with ExitStack() as stack:
        with transport.refusing_together():
            if not callable(objective):
                kind = type(objective).__name__
                raise UsageError(f"the objective is a {kind}: give a function, a class or a command")
            require_whole("window", window, 1)
            require_seconds("timeout", timeout)
            if options.adapt and options.results is None:
                raise UsageError("adapt uses the results of a study: name its folder with results=")
            if options.join and options.results is None:
                raise UsageError("join=True needs results that all jobs see, and the same in each: give results=")
            if not all(map(callable, callbacks)):
                raise UsageError(f"callbacks={callbacks!r}: give a list of functions of the study and a trial")
            problem = problem_of(
                space, n_trials=n_trials, minimize=minimize, maximize=maximize, seed=seed, enqueue=enqueue,
                staged=getattr(objective, "staged", True),
            )  # fmt: skip
            chosen = strategy_of(strategy)
            _check_together(together, alike, objective, chosen, given_alone=devices == 1 and nodes == 0)
            problem = replace(problem, together=int(together or 0))
            if together and options.trial_timeout:
                options = replace(options, trial_timeout=options.trial_timeout * together)
            learns = not chosen.begin(problem).at_once
            if options.results is not None:
                require_identity(*problem.space.things(), *problem.enqueued)
            _check_objective(objective, problem, options)
            gang_of = None if devices == 1 and nodes == 0 else _gangs(devices, nodes, options)
            slots = slots_here(options)
        of_ranks, agreed = transport.gather(slots), ("", "", 0)
        with transport.refusing_together():
            if transport.rank == 0:
                made = "" if options.results else stack.enter_context(TemporaryDirectory(prefix="search-"))
                usual = _usual_size(of_ranks, devices, nodes, options, together or 1)
                agreed = made, os.urandom(4).hex() if options.join else "", usual
        made, job, usual = transport.broadcast(agreed)
        folder = Path(options.results or made).absolute()
        problem = replace(problem, window=int(window or usual))
        experiment = Tuning(
            space=problem.space.described(),
            strategy=chosen.describe(problem),
            objectives=described(problem.objectives),
            seed=problem.seed,
            window=problem.window if learns else None,
            enqueued=tuple(header_text(dict(point)) for point in problem.enqueued),
            together=problem.together or None,
            task=WorkersPart(objective, problem, folder / TRIALS, job),
            plan=LeadersPart(chosen, callbacks, SearchLimit(timeout), options.results, gang_of, alike),
        )
        outcomes = run_study(experiment, options)
    if outcomes and all(outcome.result.failed for outcome in outcomes):
        raise StudyError(f"{why_none(*outcomes[0])}\n{advice()}")
    return experiment.study(outcomes, options.results)


def _command(objective: Any, options: RunOptions, nodes: Need) -> tuple[Any, RunOptions]:
    """The objective, which a text or a list of words is the command of. Its worker kills it, before that would be."""
    if isinstance(objective, str | list | tuple):
        objective = Command(objective)
    if isinstance(objective, Command) and nodes:
        objective = objective.launched_by(launched().launcher)
    if not isinstance(objective, Command) or options.trial_timeout is None:
        return objective, options
    return objective.limited(options.trial_timeout), replace(options, trial_timeout=options.trial_timeout + KILL_S)


def _check_together(together: Any, alike: Any, objective: Any, strategy: Strategy, *, given_alone: bool) -> None:
    """Raise UsageError for trials that cannot be evaluated in groups. given_alone: whether each has one device."""
    require_whole("together", together, 1)
    if alike is not None and (together is None or not callable(alike)):
        fix = "give together= as well, such as together=40" if callable(alike) else "give a function of parameters"
        raise UsageError(f"alike={getattr(alike, '__name__', alike)!s:.100} says which trials train together: {fix}")
    if together is None:
        return
    functions = objective, getattr(objective, "__call__", None)  # noqa: B004 - of an object or its class
    reasons = {
        "a command takes one trial": isinstance(objective, Command),
        "a generator yields steps of one trial": any(map(inspect.isgeneratorfunction, functions)),
        f"{type(strategy).__name__} has stages of trials": not isinstance(strategy, Sampling),
        "devices= and nodes= are for one trial": not given_alone,
    }
    if why := next((why for why, holds in reasons.items() if holds), ""):
        raise UsageError(f"together={together} evaluates whole trials as a list, but {why}: leave one of them out")


def _check_objective(objective: Any, problem: Problem, options: RunOptions) -> None:
    """Raise UsageError for an objective that does not fit the space, or cannot be sent to workers."""
    if callable(check := getattr(objective, "check", None)) and not isinstance(objective, type):
        check(problem.space)
    if options.workers == 0:
        return
    sendable("the objective", objective, "make it in setup(device), or in the call")


def slots_here(options: RunOptions) -> int:
    """How many slots this rank has. Raises UsageError."""
    return 1 if options.workers == 0 else len(choose(options.gpu, options.workers, options.threads)[0])


def _gangs(devices: Need, nodes: Need, options: RunOptions) -> Callable[[Mapping[str, Any]], Gang]:
    """The gang that a trial needs, from its parameters. Raises UsageError for bad numbers, also when it is called."""

    def number(name: str, need: Need, params: Mapping[str, Any], low: int) -> int:
        needed = need(params) if callable(need) else need
        require_whole(f"{name} of {dict(params)}" if callable(need) else name, needed, low)
        return int(needed)

    def gang_of(params: Mapping[str, Any]) -> Gang:
        return Gang(
            1 if options.workers == 0 else number("devices", devices, params, 1), number("nodes", nodes, params, 0)
        )

    if not callable(devices):
        number("devices", devices, {}, 1)
    if not callable(nodes):
        number("nodes", nodes, {}, 0)
    return gang_of


def _usual_size(slots: Sequence[int], devices: Need, nodes: Need, options: RunOptions, together: int) -> int:
    """The window: what the journal says, else by how many trials run at a time. Raises UsageError.

    It is twice as large, so that slots have work while one trial takes longer. One slot waits for no other. So
    many trials as are evaluated `together` need one slot.
    """
    at_once, known = _at_once(slots, devices, nodes), _known_size(options)
    joined = max(2, JOINED_SIZE // together) if together > 1 else JOINED_SIZE
    usual = joined if options.join else 2 * at_once if at_once > 1 else at_once
    return known or usual * together


def _at_once(slots: Sequence[int], devices: Need, nodes: Need) -> int:
    """How many trials run at a time if all need as much, else the number of slots; `slots` are those of each rank."""
    if not callable(nodes) and nodes > len(slots):
        fix = f"start the script with mpirun or srun on {nodes} or more"
        raise UsageError(f"nodes={nodes} for each trial, but this job has {len(slots)}: {fix}")
    if not callable(devices) and devices > max(slots) > 1:
        raise UsageError(f"devices={devices} for each trial, but the largest node has {max(slots)}: give no more")
    if callable(devices) or callable(nodes):
        return sum(slots)
    return len(slots) // nodes if nodes else sum(n // devices for n in slots) or len(slots)


def known_settings(options: RunOptions) -> dict[str, Any]:
    """What the journal in the results folder says of the study that is continued; nothing where one begins."""
    header = None if options.results is None or options.restart else read_header(options.results)
    return {} if header is None else header["settings"]


def _known_size(options: RunOptions) -> int:
    """That of the window, which the journal in the results folder says; 0 where there is none."""
    if options.results is None or options.restart:
        return 0
    size = known_settings(options).get("window")
    if (trials := options.results / TRIALS).is_symlink():
        raise UsageError(f"{trials} is a link: put the folder that it leads to there, or name another results folder")
    return size if isinstance(size, int) else 0
