"""A backend of joblib that makes the calls of a `Parallel` together, once all of them are known."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from joblib.parallel import FallbackToBackend, ParallelBackendBase

Done = Callable[[Any], None]  # of joblib: takes what a call came to


class Collecting(ParallelBackendBase):
    """Collects all calls, and has them made when the first result is asked for."""

    supports_retrieve_callback = True
    parallel: Any = None

    def configure(self, n_jobs: int = 1, parallel: Any = None, **options: Any) -> int:
        if self.parallel is not parallel:  # a `parallel_config` has one backend, and several `Parallel` may be open
            own = copy.copy(self)
            own.parallel = parallel
            raise FallbackToBackend(own)
        parallel.pre_dispatch = "all"  # whatever is asked: it limits the memory of joblib's own queue
        return int(self.effective_n_jobs(n_jobs))

    def start_call(self) -> None:
        self._submitted: list[tuple[Any, Done]] = []  # where the one before broke off

    def submit(self, func: Any, callback: Done) -> None:
        self._submitted.append((self.prepared(func), callback))

    def prepared(self, func: Any) -> Any:
        """What is kept of a call until all are made."""
        return func

    @abstractmethod
    def make(self, calls: Sequence[tuple[Any, Done]]) -> None:
        """Make these calls, of which there is one at least, and tell what each came to."""

    def retrieve_result_callback(self, out: Any) -> Any:
        return out

    @contextmanager
    def retrieval_context(self) -> Iterator[None]:
        """Joblib enters it once, when all calls were submitted."""
        submitted, self._submitted = self._submitted, []
        if self.parallel._aborting:  # what makes up the calls has raised, which joblib would not see any more
            self.parallel._raise_error_fast()
        if submitted:
            self.make(submitted)
        yield
