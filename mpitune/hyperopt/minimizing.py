"""What rank 0 does with a call of `fmin`: hyperopt's algorithm proposes, in the order of numbers, with a window."""

from __future__ import annotations

import copy
import functools
import inspect
import os
import random
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from hyperopt import JOB_STATE_DONE, JOB_STATE_ERROR, JOB_STATE_NEW, JOB_STATE_RUNNING
from hyperopt.base import SONify

from mpitune.errors import UsageError
from mpitune.hyperopt.worker import MODULE, InWorker, read_kept, typed_values
from mpitune.identity import header_text, identity, without_address
from mpitune.optimize.door import Led, begun, own_folder, require_script, say_kept
from mpitune.optimize.plain import say_changed
from mpitune.optimize.search import known_settings
from mpitune.optimize.tuning import require_whole
from mpitune.optimize.window import Proposed
from mpitune.options import RunOptions, of_script, usual_options
from mpitune.processes.pickles import packed_call
from mpitune.processes.process import sendable, unpacked_error
from mpitune.storage.files import written_whole
from mpitune.storage.table import last_line
from mpitune.studies import run_study
from mpitune.trial import Result, Segment, Trial

hyperopts, SIGNATURE = inspect.unwrap(MODULE.fmin), inspect.signature(MODULE.fmin)
_how: ContextVar[tuple[RunOptions, int | None] | None] = ContextVar("how", default=None)  # the call that begins


@dataclass(frozen=True)
class Minimizing(Led):
    """One call of `fmin`. The fields before `in_worker` are those of the journal's header."""

    fix = "return numbers, texts or lists of them"

    space: str
    strategy: str
    objectives: tuple[str, ...]
    rstate: str  # digits of its state; where none was given "None", and a seed that the folder keeps
    window: int
    trials: int  # how many it was given
    in_worker: InWorker = field(metadata={"changes_results": False})
    leader: Loop | None = field(default=None, metadata={"changes_results": False})

    @property
    def seed(self) -> int:
        """That of the global random numbers."""
        return int(self.rstate.split()[-1])


class Loop(MODULE.FMinIter):
    """hyperopt's loop of a call, cut into asking and telling; see `Led`.

    The user's trials get each one when it is told; until then only the algorithm sees it, as one that runs.
    """

    early_stop_args: Any
    rstate: Any
    timeout: Any
    loss_threshold: Any
    raised: Exception | None = None
    _best = float("inf")
    _stopped = _exhausted = _begun = _has_asked = is_cut = False

    def exhaust(self) -> Loop:
        """Run all trials; where no call of `fmin` of this module is begun, as by hyperopt."""
        if (how := _how.get()) is None:
            super().exhaust()
            return self
        if self.asynchronous:
            raise UsageError(f"{type(self.trials).__name__} has workers of its own, which are not here: give Trials()")
        token = _how.set(None)  # workers=0: a call within a trial is hyperopt's
        self._told = set[str]()
        self._open: list[tuple[dict[str, Any], bool]] = []  # asked for, in order; whether one ends a turn of the loop
        self._enqueued = {doc["tid"] for doc in self.trials._dynamic_trials if doc["state"] == JOB_STATE_NEW}
        try:
            with self.progress_callback(initial=len(self.trials), total=self.max_evals) as self._bar:
                self._on_engine(*how)
        finally:
            _how.reset(token)
            self.trials._ids -= {doc["tid"] for doc, _ in self._open} - self._enqueued
            for doc in (doc for doc, _ in self._open if doc["tid"] in self._enqueued):
                doc["state"] = JOB_STATE_NEW
            self.trials.refresh()
        if self.raised is not None:
            raise self.raised
        return self

    def _on_engine(self, options: RunOptions, window: int | None) -> None:
        trials, of_script = self.trials, self.rstate is not False
        function, self.arrays, self.extras = self.domain.fn, dict[str, np.ndarray](), dict[int, Any]()
        self.functions = {"objective": function}
        self.least, self.n_left = self.max_queue_len, self.max_evals - len(trials)
        trials.refresh()  # points are counted from now on: they come beside max_evals
        self.n_trials = None if self.max_evals == sys.maxsize else max(0, self.n_left) + len(self._enqueued)
        sendable("the objective", function, "make it within the objective", lambda thing: packed_call(thing, {}))
        in_worker = InWorker.of(self.domain, self.arrays, trials._exp_key)
        kept = re.fullmatch(r"None (\d{1,10})", str(known_settings(options).get("rstate")))
        seed = int(kept[1]) if kept else None
        if of_script:
            seed = int(identity(self.rstate.bit_generator.state)[:8], 16)
        alone = "" if self._algorithm.startswith("hyperopt.") else "the algorithm is not hyperopt's"
        seed, size = begun(options, seed, window, alone)
        self.rstate = self.rstate or np.random.default_rng(seed)
        say_kept(function, "return it in the result, beside loss and status", options)
        space = without_address(str(self.domain.expr).translate({123: "(", 125: ")"}))
        algo = f"{self._algorithm}: {header_text(self.algo)}"
        n_before = min(self._enqueued, default=len(trials._ids))
        goal, size, rstate = ("minimize loss",), max(size, self.least), f"{seed}" if of_script else f"None {seed}"
        run_study(Minimizing(space, algo, goal, rstate, size, n_before, in_worker, self), options)

    @property
    def _algorithm(self) -> str:
        """The module that has it."""
        algo = self.algo
        while isinstance(algo, functools.partial):
            algo = algo.func
        return str(getattr(algo, "__module__", ""))

    @property
    def ended(self) -> bool:
        """Whether it ends, as if no later trial had run."""
        reached = self.loss_threshold is not None and self._best < self.loss_threshold
        return self.raised is not None or self._stopped or reached

    @property
    def is_late(self) -> bool:
        """Whether its time is over, which begins with the first trial of this process."""
        return self._begun and self.timeout is not None and MODULE.timer() - self.start_time >= self.timeout

    def ask(self, most: int) -> list[Proposed] | None:
        """What hyperopt would enqueue next, if one may begin; None where none that is open counts any more."""
        self.is_cut = self.is_late and self.n_left > 0
        if self.is_late or self._exhausted:
            return []
        trials, first, self._has_asked = [], not self._has_asked, True
        with self._raising():
            docs = [doc for doc in self.trials._dynamic_trials if doc["state"] == JOB_STATE_NEW]
            while len(docs) < self.max_queue_len and self.n_left > 0 and not self.is_cancelled and not self._exhausted:
                new = self._suggested(min(self.max_queue_len - len(docs), self.n_left), docs)
                docs, self.n_left, self._exhausted = docs + new, self.n_left - len(new), not new
            if not docs and not self._open and (first or self._exhausted):
                self._turn()
            segments = [Segment(doc["tid"], for_objective=typed_values(doc["misc"]["vals"])) for doc in docs]
            trials = [Trial(f"t{segment.number:06}", {}, segment) for segment in segments]
            self._open += [(doc, doc is docs[-1]) for doc in docs]
            for doc in docs:
                doc["state"] = JOB_STATE_RUNNING
        return None if self.ended else [Proposed((trial,)) for trial in trials]

    def _suggested(self, n: int, docs: list[Any]) -> list[Any]:
        """Proposals of the algorithm, which sees those that are open."""
        numbers, seen = self.trials.new_trial_ids(n), self.trials
        self.trials.refresh()
        others = [doc for doc in (*(doc for doc, _ in self._open), *docs) if doc["tid"] not in self._enqueued]
        seed = self.rstate.integers(2**31 - 1)
        if self._algorithm == "hyperopt.atpe":  # it draws from global random numbers, and takes no trial that runs
            random.seed(int(seed))
            np.random.seed(seed)
        elif others:
            seen = copy.copy(self.trials)
            seen._dynamic_trials = self.trials._dynamic_trials + others
            seen.refresh()
        new = self.algo(numbers, self.domain, seen, seed)
        return [self.trials.assert_valid_trial(SONify(doc)) for doc in new]

    def tell(self, proposed: Proposed, results: Sequence[Result]) -> bool:
        """Take in the next result in the order of numbers; returns whether none that is open counts any more."""
        (result,), (doc, ends_turn) = results, self._open.pop(0)
        if doc["tid"] in self.extras and not self._begun:  # which a journal does not have
            self._begun, self.start_time = True, MODULE.timer() - result.seconds
        if doc["tid"] not in self._enqueued:
            self.trials._insert_trial_docs([doc])
        raised, *exact = self.extras.pop(doc["tid"], (b"",))
        error: Any = ("worker", last_line(result.error or ""))  # which has died of it, each time
        if result.ending.for_door is not None:
            kept = read_kept(result.ending.for_door, doc["tid"])
            doc["book_time"], doc["refresh_time"], error = kept.begun, kept.ended, kept.error
            content, attachments = exact or (kept.result, kept.attachments)
            doc["result"] = content if error is None else doc["result"]
            self.trials.attachments.update(attachments)
            if not exact and not self._told:  # attachments have names of their own in each trial
                say_changed(kept.texts, self._told)
        doc["state"] = JOB_STATE_DONE if error is None else JOB_STATE_ERROR
        if error is not None:
            MODULE.logger.error("job exception: %s", error[1])
            doc["misc"]["error"] = error
        if error is not None and result.ending.for_door is not None and not self.catch_eval_exceptions:
            earlier = f"trial {doc['tid']} has raised {error[0]} in another process: {error[1]}"
            self.raised = unpacked_error(raised) if raised else RuntimeError(earlier)
            return True
        self._bar.update(error is None)
        if ends_turn:
            with self._raising():
                self._turn()
        return self.ended

    def _turn(self) -> None:
        """What hyperopt does when all that it had enqueued has ended."""
        self.trials.refresh()
        if self.trials_save_file:
            with written_whole(Path(self.trials_save_file)) as file:
                cloudpickle.dump(self.trials, file)
        if self.early_stop_fn is not None:
            self._stopped, self.early_stop_args = self.early_stop_fn(self.trials, *self.early_stop_args)
        losses = [loss for loss in self.trials.losses() if loss is not None and not np.isnan(loss)]
        if losses:
            self._best = min(losses)
            self._bar.postfix = f"best loss: {self._best}"

    @contextmanager
    def _raising(self) -> Iterator[None]:
        """What the algorithm and functions of the script raise, the call raises."""
        try:
            yield
        except Exception as error:
            self.raised = error


MODULE.FMinIter = Loop


def fmin(*args: Any, window: int | None = None, options: RunOptions | None = None, **named: Any) -> Any:
    """`hyperopt.fmin(...)`, whose trials run on all devices of all nodes; see docs/hyperopt.md.

    Args:
        args: as hyperopt's.
        window: how many trials may be open; by default twice the number of workers.
        options: how it is run; `results` is a folder that keeps the trials.
        named: as hyperopt's.

    Raises:
        UsageError: for what cannot be sent to workers, and options that cannot hold.

    Example:
        >>> import numpy as np
        >>> from hyperopt import hp
        >>> from mpitune.hyperopt import fmin
        >>> rstate = np.random.default_rng(1)
        >>> best = fmin(lambda x: x**2, hp.uniform("x", -1, 1), max_evals=20, rstate=rstate, window=4, verbose=False)
        >>> abs(best["x"]) < 0.5
        True
    """
    if _how.get() is not None:  # by `Trials.fmin`, which fmin calls
        return hyperopts(*args, **named)
    call = SIGNATURE.bind(*args, **named)
    require_whole("window", window := of_script.window(window), 1)
    options = own_folder(options or usual_options(keeps=True, quiet=True), object())
    require_script(options)
    arguments = call.arguments
    if options.results and arguments.get("trials_save_file"):
        raise UsageError("trials_save_file and a results folder both keep the trials: leave one of them out")
    rstate = arguments.get("rstate")
    if not isinstance(rstate, np.random.Generator | None):
        number = rstate if isinstance(rstate, int) else 1
        raise UsageError(f"rstate={rstate!r:.100}: give numpy.random.default_rng({number})")
    if rstate is None and not os.environ.get("HYPEROPT_FMIN_SEED"):
        arguments["rstate"] = False  # it will be made of a seed that the folder keeps
    token = _how.set((options, window))
    try:
        return hyperopts(*call.args, **call.kwargs)
    finally:
        _how.reset(token)
