"""A search on all ranks of a job: rank 0 makes it, and the others join its studies and receive what it has found."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from mpitune.errors import StudyError, UsageError, own_traceback
from mpitune.processes.process import packed, packed_error, unpacked_error
from mpitune.ranks.transport import Transport
from mpitune.sklearn.search.folds import Folds
from mpitune.studies import run_study


def on_all_ranks(transport: Transport, search: Any, fit: Callable[[], Any]) -> None:
    """Have rank 0 call `fit`, which tells the others of each study; then all have the fitted search, or its error."""
    if transport.rank == 0:
        try:
            fit()
            own = {*search.get_params(deep=False), "_skl_callbacks"}
            content = _packed({name: value for name, value in vars(search).items() if name not in own})
        except BaseException as error:
            transport.broadcast(("error", packed_error(error, own_traceback(error))))
            transport.settle()
            raise
        transport.broadcast(("done", content))
        transport.settle()
        return
    while (message := transport.broadcast(None))[0] == "study":
        with suppress(UsageError, StudyError, KeyboardInterrupt, SystemExit):  # rank 0 says it next
            run_study(Folds(), message[1])
    transport.settle()
    if message[0] == "error":
        raise unpacked_error(message[1])
    vars(search).update(_unpacked(message[1]))


def _packed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes for the other ranks; of one that cannot be pickled, why."""
    content: dict[str, Any] = {}
    for name, value in attributes.items():
        try:
            content[name] = packed(value)
        except Exception as error:  # whatever the thing's own pickling raises
            content[name] = f"{type(error).__name__}: {error}"
    return content


def _unpacked(content: Mapping[str, Any]) -> dict[str, Any]:
    attributes = {}
    for name, value in content.items():
        try:
            attributes[name] = pickle.loads(value)
        except Exception as error:
            why = value if isinstance(value, str) else f"{type(error).__name__}: {error}"
            warnings.warn(f"{name} is on rank 0 alone, as it cannot be pickled: {why}", UserWarning, stacklevel=5)
    return attributes
