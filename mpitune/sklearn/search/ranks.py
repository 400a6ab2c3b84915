"""A search on all ranks of a job: rank 0 makes it, and the others join its studies and receive what it has found."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from mpitune.errors import own_traceback
from mpitune.processes.process import packed, packed_error, unpacked_error
from mpitune.ranks.transport import Transport
from mpitune.studies import led


def on_all_ranks(transport: Transport, search: Any, fit: Callable[[], Any]) -> None:
    """Have rank 0 call `fit`, whose studies all ranks make; then all have the fitted search, or its error."""
    content: dict[str, Any] = {}
    raised: BaseException | None = None
    with led(transport) as leads:
        if leads:
            try:
                fit()
                own = {*search.get_params(deep=False), "_skl_callbacks"}
                content = _packed({name: value for name, value in vars(search).items() if name not in own})
            except BaseException as error:
                raised = error
    why = b"" if raised is None else packed_error(raised, own_traceback(raised))
    content, why = transport.broadcast((content, why))
    transport.settle()
    if raised is not None or why:
        raise raised or unpacked_error(why)
    for name, value in () if leads else content.items():
        try:
            vars(search)[name] = pickle.loads(value)
        except Exception as error:
            cause = value if isinstance(value, str) else f"{type(error).__name__}: {error}"
            warnings.warn(f"{name} is on rank 0 alone, as it cannot be pickled: {cause}", UserWarning, stacklevel=4)


def _packed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes for the other ranks; of one that cannot be pickled, why."""
    content: dict[str, Any] = {}
    for name, value in attributes.items():
        try:
            content[name] = packed(value)
        except Exception as error:  # whatever the thing's own pickling raises
            content[name] = f"{type(error).__name__}: {error}"
    return content
