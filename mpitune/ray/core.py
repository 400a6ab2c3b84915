"""What Ray's core means where Ray is not started: values are kept by this process, and there is no cluster to ask."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from typing import Any, NoReturn

import ray
from ray._private import worker as of_ray
from ray._private.state import GlobalState

from mpitune.devices.choose import usable_cores, visible_gpus
from mpitune.errors import StudyError, UsageError
from mpitune.processes.keeper import scratch_folder

values: dict[int, Any] = {}  # what `ray.put` keeps; workers begin with a copy
made_up: set[str] = set()  # names of studies that the script has not named
stands_in = False  # in this process
refusals: list[str] | None = None  # in a trial: what it was told, whatever it made of that
_started = False
_folder = ""


class NotHere(UsageError):
    """A call of Ray in a trial needs a cluster."""


@dataclass(frozen=True)
class Put:
    """What `ray.put` returns: the number of a value."""

    number: int


def put(value: Any, **options: Any) -> Put:
    """Keep a value; one that is kept is itself, as for `tune.with_parameters`."""
    if isinstance(value, Put):
        return value
    own = Put(max(values, default=-1) + 1)
    values[own.number] = value
    return own


def get(refs: Any, **options: Any) -> Any:
    """The values of one or several. Raises NotHere for what comes of a task or an actor."""
    if isinstance(refs, list | tuple):
        return [get(ref) for ref in refs]
    return values[refs.number] if isinstance(refs, Put) else not_here()


def not_here(*args: Any, **options: Any) -> NoReturn:
    """Raises NotHere in a trial, which ends the study; SystemExit in the script, after a line."""
    error = NotHere(
        "the script asks for a task, an actor or the cluster of Ray, which mpitune does not start: call the function "
        "itself (of a trainer of Ray Train its loop), and leave to mpitune what runs where; of Ray's core, init, put, "
        "get and shutdown are here"
    )
    if refusals is None:
        refuse(error)
    refusals.append(str(error))
    raise error


def refuse(error: UsageError | StudyError) -> NoReturn:
    """End the script with this line. `except Exception`, as Ray and scripts have it, would hide an exception."""
    print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
    raise SystemExit(int(error.status)) from error


def _init(*args: Any, **options: Any) -> contextlib.AbstractContextManager[None]:
    global _started
    _started = True
    for hook in of_ray._post_init_hooks:
        if type(getattr(hook, "__self__", None)).__name__ == "_ParameterRegistry":
            hook()  # of `tune.with_parameters`
    return contextlib.nullcontext()


def _shutdown(*args: Any, **options: Any) -> None:
    global _started
    _started = False


def _resources() -> dict[str, float]:
    here = {"CPU": float(usable_cores()), "GPU": float(len(visible_gpus()))}
    return {name: n for name, n in here.items() if n}


def _gpu_ids() -> list[str]:
    return [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]


def session_folder() -> str:
    """Where Ray's files lie until they are in the study's folder, and where its trials work."""
    global _folder
    if not os.path.isdir(_folder):
        _folder = tempfile.mkdtemp(prefix="ray-", dir=scratch_folder())
        atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    return _folder


def stand_in(*, started: bool = False) -> None:
    """From now on Ray's core means this, in this process."""
    from ray.train._internal import storage

    global _started, stands_in
    _started, stands_in = started, True
    own = {
        "init": _init, "shutdown": _shutdown, "is_initialized": lambda: _started, "put": put, "get": get,
        "cluster_resources": _resources, "available_resources": _resources, "get_gpu_ids": _gpu_ids,
    }  # fmt: skip
    for name, meaning in own.items():
        setattr(ray, name, meaning)
    of_ray.Worker.check_connected = GlobalState._check_connected = not_here
    of_ray.Worker.current_node_id = of_ray.Worker.current_task_id = property(not_here)
    storage._get_ray_train_session_dir = session_folder
    named = storage.StorageContext.get_experiment_dir_name

    def name_of(trainable: Any) -> str:
        made_up.add(name := named(trainable))
        return name

    storage.StorageContext.get_experiment_dir_name = staticmethod(name_of)
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # the engine hears signals
