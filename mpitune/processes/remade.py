"""Things that pickle cannot send, made again in a worker from what they are made of.

A fork of the script would have them all, but it hangs in the next parallel loop of a library that has used OpenMP
before (XGBoost, LightGBM, torch, scikit-learn): the threads of its pool are not in the fork.
"""

from __future__ import annotations

import fcntl
import io
import os
import tempfile
import threading
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np


def remade(thing: Any) -> Any:
    """How pickle makes such a thing again, a lock that is open for one; NotImplemented for all else."""
    kind = type(thing)
    how = _OF.get(kind) or _OF_LIBRARIES.get(f"{kind.__module__.partition('.')[0]}.{kind.__name__}")
    return NotImplemented if how is None else how(thing)


def _file(file: Any) -> Any:
    """A file by its name. What workers and script write is appended, line by line, as no worker closes it."""
    is_text = isinstance(file, io.TextIOBase)
    if file.closed or not isinstance(file.name, str) or file.name.startswith("<") or (is_text and not file.writable()):
        return NotImplemented  # cloudpickle knows the streams of Python, and sends what a text has
    mode, at = "r", 0
    if file.writable():
        file.flush()
        fcntl.fcntl(file.fileno(), fcntl.F_SETFL, fcntl.fcntl(file.fileno(), fcntl.F_GETFL) | os.O_APPEND)  # here, too
        mode = "a+" if file.readable() else "a"
    else:
        at = file.tell()
    how = (1, file.encoding, file.errors) if is_text else (0 if file.writable() else -1, None, None)
    return _opened, (os.path.abspath(file.name), mode if is_text else f"{mode}b", at, *how)


def _opened(path: str, mode: str, at: int, buffering: int, encoding: str | None, errors: str | None) -> Any:
    file = open(path, mode, buffering, encoding, errors)  # noqa: SIM115 - it stays open in the worker
    if at:
        file.seek(at)
    return file


def _saved(thing: Any) -> np.ndarray:
    """The bytes of its binary file: an array, since large ones are shared."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(None):  # LightGBM says that it saves
        path = os.path.join(folder, "data")
        thing.save_binary(path)
        return np.fromfile(path, np.uint8)


def _dataset(dataset: Any) -> Any:
    """LightGBM's Dataset, which is without the data it is made of once it is constructed."""
    if dataset._handle is None:
        return NotImplemented
    state = {name: value for name, value in vars(dataset).items() if name != "_handle"}
    return _loaded, (type(dataset), _saved(dataset), dataset.params), state


def _loaded(kind: Any, content: np.ndarray, params: Any = None) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        content.tofile(path := os.path.join(folder, "data"))
        return kind(path) if params is None else kind(path, params={**params, "verbosity": -1}).construct()


def _silent_bar(iterable: Any, total: Any) -> Any:
    return import_module("tqdm").tqdm(iterable, total=total, disable=True)


_OF: dict[type, Callable[[Any], Any]] = {
    type(threading.Lock()): lambda lock: (threading.Lock, ()),
    type(threading.RLock()): lambda lock: (threading.RLock, ()),
    **dict.fromkeys((io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO), _file),
}
_OF_LIBRARIES: dict[str, Callable[[Any], Any]] = {
    "xgboost.DMatrix": lambda matrix: (_loaded, (type(matrix), _saved(matrix))),
    "lightgbm.Dataset": _dataset,
    # A worker ends without a word to its writers, so these keep nothing back.
    "torch.SummaryWriter": lambda writer: (partial(writer.__class__, flush_secs=0), (writer.log_dir,)),
    **{
        f"tqdm.tqdm{n}": lambda bar: (_silent_bar, (bar.iterable, bar.total))
        for n in ("", "_asyncio", "_notebook", "_rich")
    },
}
