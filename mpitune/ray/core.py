"""What Ray's core means where Ray is not started: values are kept by this process, and there is no cluster to ask."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import ray
from ray._private import services
from ray._private import worker as of_ray
from ray._private.state import GlobalState
from ray.experimental import internal_kv
from ray.runtime_context import RuntimeContext
from ray.train._internal import session
from ray.train.v2._internal.execution.train_fn_utils import LocalTrainFnUtils

from mpitune.devices.choose import usable_cores, visible_gpus
from mpitune.errors import StudyError, UsageError
from mpitune.identity import identity
from mpitune.processes.keeper import scratch_folder
from mpitune.processes.process import OnImport

values: dict[int, Any] = {}  # what `ray.put` keeps; workers begin with a copy
PARAMETERS = "_mpitune_parameters"  # of what `tune.with_parameters` makes: its values
made_up: set[str] = set()  # names of studies that the script has not named
given_seeds: dict[str, int] = {}  # of global random numbers, since the last study
numpy_random: Any = np.random.mtrand._rand
python_random: Any = random._inst
tuners: dict[Path, bytes] = {}  # by place, before a `Tuner` of a study that has not begun has written it
stands_in = False  # in this process
refusals: list[str] | None = None  # in a trial: what it was told, whatever it made of that
_folder, _report = "", LocalTrainFnUtils.report


@dataclass(frozen=True)
class Put:
    """What `ray.put` returns: the number of a value."""

    number: int

    def __post_init__(self) -> None:
        vars(self)["__wrapped__"] = values.get(self.number)  # by which a study hears that it has changed

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return Put, (self.number,)


def seed_numpy(seed: Any = None) -> None:
    """`numpy.random.seed`, of which a study hears."""
    numpy_random.seed(seed)
    _note("seed", seed)


def seed_random(a: Any = None, version: int = 2) -> None:
    """`random.seed`, of which a study hears."""
    python_random.seed(a, version)
    _note("seed_of_random", a)


def _note(name: str, seed: Any) -> None:
    is_plain = isinstance(seed, int | np.integer) and 0 <= seed < 1 << 32
    given_seeds[name] = int(seed) if is_plain else int(identity(seed)[:8], 16)
    if seed is None:
        del given_seeds[name]


def put(value: Any, **options: Any) -> Put:
    """Keep a value; one that is kept is itself, as for `tune.with_parameters`."""
    if isinstance(value, Put):
        return value
    number = max(values, default=-1) + 1
    values[number] = value
    return Put(number)


def get(refs: Any, **options: Any) -> Any:
    """The values of one or several. Raises UsageError for what comes of a task or an actor."""
    if isinstance(refs, list | tuple):
        return [get(ref) for ref in refs]
    return values[refs.number] if isinstance(refs, Put) else not_here()


def with_parameters(wrapped: Callable[..., Any], trainable: Any, **named: Any) -> Any:
    """`tune.with_parameters`, of which a study knows what it gives. wrapped: that of Ray."""
    made = wrapped(trainable, **named)
    given = {name: get(value) if isinstance(value, Put) else value for name, value in named.items()}
    setattr(made, PARAMETERS, getattr(trainable, PARAMETERS, {}) | given)
    return made


def not_here(*args: Any, **options: Any) -> NoReturn:
    """Raises UsageError in a trial, which ends the study; SystemExit in the script, after a line."""
    kinds = (type(each.frame.f_locals.get("self")) for each in inspect.stack(0))
    callback = next((kind.__name__ for kind in kinds if hasattr(kind, "on_trial_save")), "")
    fix = "call the function itself, and give a trainer of Ray Train one worker; ray.init, put, get and wait are here"
    if callback:
        fix = "leave it out" + ", and call setup_wandb in the trainable" * ("Wandb" in callback)
    asks = "asks for a task, an actor or the cluster of Ray, which mpitune does not start"
    error = UsageError(f"{callback or 'the script'} {asks}: {fix}")
    if refusals is None:
        refuse(error)
    refusals.append(str(error))
    raise error


def _report_kept(utils: Any, metrics: Any, checkpoint: Any = None, *args: Any, **named: Any) -> None:
    """What a trainer's loop reports, whose checkpoint it may delete then."""
    if checkpoint is not None:
        place = checkpoint.to_directory(tempfile.mkdtemp(dir=session_folder()))
        if utils._last_checkpoint is not None:
            shutil.rmtree(utils._last_checkpoint.path, ignore_errors=True)
        checkpoint = type(checkpoint).from_directory(place)
    _report(utils, metrics, checkpoint, *args, **named)


def _let_train(package: Any) -> None:
    """A trainer of one worker trains in this process, as by Ray itself one without workers does."""
    kind = package.DataParallelTrainer
    run = kind._initialize_and_run_local_controller

    def run_here(trainer: Any, loop: Any) -> Any:
        around, session._session = session._session, None  # of the trial, which is not the loop's
        trainer.run_config.name = f"{trainer.run_config.name}-{os.getpid()}"  # by which callbacks name their folders
        try:
            return run(trainer, loop)
        finally:
            session._session = around

    kind.running_in_local_mode = property(lambda self: self.scaling_config.num_workers < 2, lambda self, value: None)
    kind._initialize_and_run_local_controller, LocalTrainFnUtils.report = run_here, _report_kept


def refuse(error: UsageError | StudyError) -> NoReturn:
    """End the script with this line. `except Exception`, as Ray and scripts have it, would hide an exception."""
    print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
    raise SystemExit(int(error.status)) from error


def _require_own(folder: str) -> None:
    """Refuse links, pipes and devices in the folder of a study: Ray follows them to write and to remove files."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _require_own(entry.path)
            elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
                refuse(UsageError(f"{entry.path} is a link, a pipe or a device, which Ray would follow: remove it"))


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


def stand_in(results: Path | None = None) -> None:
    """From now on Ray's core means this, in this process. results: a folder for studies without a name."""
    from ray.train._internal import storage

    global stands_in
    stands_in = True
    own = {
        "init": lambda *args, **options: contextlib.nullcontext(), "shutdown": lambda *args, **options: None,
        "is_initialized": lambda: True, "put": put, "get": get, "get_gpu_ids": _gpu_ids,
        "wait": lambda refs, num_returns=1, **options: (refs[:num_returns], refs[num_returns:]),  # all are there
        "cluster_resources": _resources, "available_resources": _resources,
    }  # fmt: skip
    for name, meaning in own.items():
        setattr(ray, name, meaning)
    state = numpy_random.get_state()[1]
    plain: Any = np.random.RandomState(state[0]).get_state()
    given_seeds.update({"seed": int(state[0])} if np.array_equal(state, plain[1]) else {})  # given just now
    np.random.seed, random.seed = seed_numpy, seed_random
    of_ray.Worker.check_connected = GlobalState._connect_and_get_accessor = not_here
    services.canonicalize_bootstrap_address_or_die = not_here  # of `ray.util.state`
    of_ray.Worker.current_node_id = of_ray.Worker.current_task_id = property(not_here)
    sys.meta_path.insert(0, OnImport("ray.train.v2.api.data_parallel_trainer", _let_train))
    internal_kv.internal_kv_get_gcs_client = not_here  # of the autoscaler
    for name in ("get", "namespace", "get_worker_id", "get_assigned_resources", "get_placement_group_id"):
        setattr(RuntimeContext, name, property(not_here))
    RuntimeContext.get_accelerator_ids = lambda self: {"GPU": _gpu_ids()}
    storage._get_ray_train_session_dir = session_folder
    context, named = storage.StorageContext, storage.StorageContext.get_experiment_dir_name
    begin = context.__init__

    def name_of(trainable: Any) -> str:
        made_up.add(name := named(trainable) if results is None else f"ray-{len(made_up) + 1}")
        return name

    def begin_at(self: Any, storage_path: Any, experiment_dir_name: str, **how: Any) -> None:
        if results is not None and experiment_dir_name in made_up:
            storage_path, how["storage_filesystem"] = os.path.abspath(results), None
        _, place = storage.get_fs_and_path(storage_path, how.get("storage_filesystem"))
        _require_own(os.path.join(place, experiment_dir_name))
        begin(self, storage_path=storage_path, experiment_dir_name=experiment_dir_name, **how)
        if (place := Path(self.experiment_fs_path, "tuner.pkl")).is_file() and place not in tuners:
            tuners[place] = place.read_bytes()

    context.get_experiment_dir_name, context.__init__ = staticmethod(name_of), begin_at
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # the engine hears signals
