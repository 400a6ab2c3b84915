"""A backend of joblib whose workers are those of this package, on all nodes of a job.

    import joblib
    import mpitune.joblib
    from sklearn.datasets import load_iris
    from sklearn.model_selection import cross_val_score
    from sklearn.tree import DecisionTreeClassifier

    X, y = load_iris(return_X_y=True)
    with joblib.parallel_config("mpitune", n_jobs=-1):
        scores = cross_val_score(DecisionTreeClassifier(), X, y, cv=10)

Under mpirun or srun `python -m mpitune script.py` runs the script on rank 0, and the other ranks make its calls.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from joblib import register_parallel_backend
from joblib.parallel import FallbackToBackend, SequentialBackend

from mpitune.devices.choose import usable_cores, visible_gpus
from mpitune.errors import UsageError
from mpitune.joblib.calls import Calls, Made, Raised, value_of
from mpitune.options import DEVICES, RunOptions, of_script
from mpitune.processes.collecting import Collecting, Done
from mpitune.processes.fork_server import THREADS
from mpitune.processes.pickles import LARGE_ARRAY, CallPickler, named
from mpitune.processes.process import installed_modules_of
from mpitune.ranks import launch
from mpitune.settings import require_seconds
from mpitune.studies import n_ranks, run_study, stays

TELLS = b"sklearn.callback._transport"  # in a call: a callback that sends what it hears by a socket of this machine


def begin(*, others_wait: bool) -> None:
    """Each `n_jobs` of this process means workers of all nodes. others_wait: for calls, as there are other ranks."""
    launch.others_wait = others_wait
    register_parallel_backend("mpitune", MpituneBackend, make_default=True)


class MpituneBackend(Collecting):
    """The calls of a `Parallel` are the trials of a study: worker processes make them, one per core of each node.

    As with joblib's own processes: an exception in a call is raised here, caused by its traceback there; arrays of a
    megabyte and more are read-only memory that all workers of a node share (`max_nbytes`, `mmap_mode`); a memory-mapped
    file that may be written to is opened there, by its path on all nodes; calls within a call use threads, and below
    them none; a worker's libraries use as many threads as there are cores for it, or as OMP_NUM_THREADS,
    OPENBLAS_NUM_THREADS and their like say.
    Otherwise than there: all calls are known before the first is made; a call whose worker died is made once more,
    elsewhere if possible, and so is one that raised, where there is another node; what a call prints comes to the
    stdout of its rank.

    Args:
        gpu: GPUs of each node, such as "all": a worker for each, which sees that one alone.
        trial_timeout: seconds after which the worker of a call is killed.
        inner_max_num_threads: threads of each worker's libraries.
    """

    supports_inner_max_num_threads = True

    def __init__(self, gpu: str | int | None = None, trial_timeout: float | None = None, **options: Any) -> None:
        super().__init__(**options)
        if self.backend_kwargs:
            raise UsageError(f"the backend mpitune has no option {min(self.backend_kwargs)}")
        require_seconds("trial_timeout", trial_timeout)
        self._gpu, self._timeout = RunOptions(gpu=gpu).gpu, trial_timeout  # type: ignore[arg-type]

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None or stays():
            return 1
        return n_jobs if n_jobs > 0 else max(self._most * n_ranks() + 1 + n_jobs, 1)

    @property
    def _most(self) -> int:
        """Workers that a node can have, as far as this one tells."""
        if (gpu := self._given["gpu"]) == "none":
            return max(self._given.get("workers", usable_cores()), 1)
        return len(visible_gpus()) if gpu == "all" else gpu.count(",") + 1

    @property
    def _given(self) -> dict[str, Any]:
        """Devices and folders of workers, as the call says, or else the command line of the script."""
        if self._gpu is None:
            return {"gpu": "none", **of_script.take(*DEVICES)}
        return {"gpu": self._gpu, **of_script.take("worker_folders")}

    def configure(self, n_jobs: int = 1, parallel: Any = None, **options: Any) -> int:
        n_jobs = super().configure(n_jobs, parallel)
        if n_jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        size = n_ranks()
        if size > 1 and launch.every_rank_runs():
            raise UsageError(
                f"the script runs on each of {size} ranks: run python -m mpitune {os.path.basename(sys.argv[0])}, "
                "which runs it on one, and gives its calls to all"
            )
        large = options.get("max_nbytes", LARGE_ARRAY)
        self._large = float("inf") if large is None else float(large)
        given = self._given
        workers, inner = max(min(self._most, -(-n_jobs // size)), 1), self.inner_max_num_threads
        self._options = RunOptions(
            **{**given, "workers": workers if given["gpu"] == "none" else None},
            threads=inner or max(usable_cores() // workers, 1), quiet=True,
            trial_timeout=min((each for each in (self._timeout, parallel.timeout) if each is not None), default=None),
        )  # fmt: skip
        self._calls = Calls(
            environ=tuple((name, os.environ[name]) for name in THREADS.values() if name in os.environ and not inner),
            writeable=options.get("mmap_mode", "r") != "r",
        )
        return n_jobs

    def start_call(self) -> None:
        super().start_call()
        self._arrays: dict[str, np.ndarray] = {}
        self._known: dict[int, tuple[np.ndarray, str]] = {}  # by identity; they live until all calls are submitted

    def prepared(self, func: Callable[[], Any]) -> bytes:
        """A call as a pickle: what it is given may change before all are there."""
        file = io.BytesIO()
        try:
            CallPickler(file, self._keep, self._large).dump(func)
        except Exception as error:
            text = f"a call cannot be sent to a worker, as it cannot be pickled: {error}"
            raise pickle.PicklingError(text) from error
        if n_ranks() > 1 and TELLS in file.getvalue():
            raise UsageError(
                "scikit-learn's callbacks in a call hear of one machine alone: have these calls made by "
                'joblib.parallel_config("loky")'
            )
        return file.getvalue()

    def _keep(self, array: np.ndarray) -> str:
        if id(array) not in self._known:
            name, content = named(array)
            if name not in self._arrays:
                self._arrays[name] = content.copy()  # the caller may write to its array
            self._known[id(array)] = array, name
        return self._known[id(array)][1]

    def make(self, calls: Sequence[tuple[bytes, Done]]) -> None:
        self._known.clear()
        made = Made([call for call, _ in calls], self._arrays, [done for _, done in calls])
        self._arrays = {}
        with suppress(Raised):
            run_study(self._calls.of(made, installed_modules_of(calls[0][0])), self._options)

    def retrieve_result_callback(self, out: Any) -> Any:
        return value_of(out)


register_parallel_backend("mpitune", MpituneBackend)
