"""The calls of a `Parallel` as trials of a study. Calls and results are pickles; large arrays are data of the study."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np

from mpitune.errors import StudyError, UsageError, own_traceback
from mpitune.experiment import Data, Experiment, Objective, WorkerContext, one_round
from mpitune.port import Scheduling
from mpitune.processes.collecting import Done
from mpitune.processes.fork_server import set_threads
from mpitune.processes.pickles import read_call
from mpitune.processes.process import WithSource, packed_error, unpacked_error
from mpitune.trial import Batch, Evaluation, Result, Rounds, Trial

CALLS, ENDS = "calls", "ends"  # names of arrays: all pickles one after the other, and where each ends


class Raised(UsageError):
    """A call has raised, which joblib has been told: no others are made."""


@dataclass
class Made:
    """The calls of one `Parallel`, on rank 0.

    Attributes:
        calls: their pickles.
        arrays: large arrays in them, by name.
        told: what each call came to is told to these.
        answers: those that have not been told, by key.
    """

    calls: Sequence[bytes]
    arrays: dict[str, np.ndarray]
    told: Sequence[Done]
    answers: dict[str, Evaluation] = field(default_factory=dict)


@dataclass(frozen=True)
class Calls(Experiment):
    """The study of calls.

    Attributes:
        modules: that its workers import.
        environ: their variables.
        writeable: whether calls have copies of the arrays.
        made: the calls; other ranks and workers have them as data.
    """

    modules: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    writeable: bool = False
    made: Made | None = field(default=None, metadata={"changes_results": False})
    data_sha256: str = ""  # which nobody asks for, as nothing is kept

    def of(self, made: Made, modules: Iterable[str]) -> Calls:
        """The study of these calls."""
        return replace(self, made=made, modules=tuple(modules))

    @property
    def _here(self) -> Made:
        assert self.made is not None
        return self.made

    def __reduce__(self) -> tuple[Any, ...]:
        return Calls, (self.modules, self.environ, self.writeable)

    def data(self) -> Data:
        made = self._here
        ends = np.cumsum([len(call) for call in made.calls])
        arrays, made.arrays = made.arrays, {}  # they are in the memory of workers from now on
        return {**arrays, CALLS: np.frombuffer(b"".join(made.calls), np.uint8), ENDS: ends}

    def searches(self) -> Iterator[Rounds]:
        yield one_round(Trial(f"call{number:06}", {"call": number}) for number in range(len(self._here.calls)))

    def scheduling(self) -> Scheduling:
        return Scheduling(preload=(__name__, *self.modules), prints_plainly=True)

    def examine(self, trial: Trial, evaluation: Evaluation, kept: Evaluation | None) -> Result | None:
        """Takes what a call has returned, which no journal needs. One that has raised ends them all, as in joblib."""
        assert isinstance(evaluation, Result)
        self._here.answers[trial.key] = evaluation
        if "raised" in evaluation.arrays:
            self._tell(evaluation)
            raise Raised(f"call {trial.key} raised")
        return replace(evaluation, arrays={})

    def on_results(self, results: Iterable[Result]) -> str:
        """Tells joblib of each. One without a result ends them all, too."""
        failed = False
        for result in results:
            failed |= result.failed
            self._tell(result)
        return "a call without a result" if failed else ""

    def _tell(self, result: Result) -> None:
        answer = self._here.answers.pop(result.key, result)
        self._here.told[int(result.key.removeprefix("call"))](result if result.failed else answer)

    def objective(self, worker: WorkerContext) -> Objective:
        import_module("mpitune.joblib")  # a call may name the backend
        if self.environ:
            os.environ.update(self.environ)
            set_threads()
        calls, data = worker.data[CALLS], worker.data
        places = [slice(*place) for place in pairwise([0, *data[ENDS].tolist()])]

        def objective(batch: Batch) -> Iterator[Evaluation]:
            for trial in batch:
                place = places[int(trial.params["call"])]
                yield _called(trial, calls[place].tobytes(), data, self.writeable)

        return objective


def _called(trial: Trial, call: bytes, data: Data, writeable: bool) -> Evaluation:
    """The pickled result of a call, or its exception, which another node may not have."""
    try:
        result = read_call(call, data, writeable)()
        buffers: list[pickle.PickleBuffer] = []
        file = io.BytesIO()
        WithSource(file, 5, buffer_callback=buffers.append).dump(result)
    except BaseException as error:  # also KeyboardInterrupt and SystemExit, as by joblib's own processes
        text = own_traceback(error)
        return Evaluation(trial.key, arrays={"raised": np.frombuffer(packed_error(error, text), np.uint8)}, doubt=text)
    arrays = {f"buffer{number:06}": np.frombuffer(buffer.raw(), np.uint8) for number, buffer in enumerate(buffers)}
    return Evaluation(trial.key, arrays={"result": np.frombuffer(file.getbuffer(), np.uint8), **arrays})


def value_of(result: Result) -> Any:
    """What a call has returned. Raises what it has raised, or StudyError where its worker died each time."""
    if result.failed:
        tries = "each of its tries" if result.attempt > 1 else "its try"
        raise StudyError(f"a call has no result, as the worker of {tries} ended: {result.error}")
    if "raised" in result.arrays:
        error = unpacked_error(np.asarray(result.arrays["raised"]).tobytes())
        error.add_note(f"raised at {result.place} (host/rank/slot/device)")
        raise error
    buffers = [array for name, array in sorted(result.arrays.items()) if name != "result"]
    return pickle.loads(result.arrays["result"].data, buffers=buffers)
