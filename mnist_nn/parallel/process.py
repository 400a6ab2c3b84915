"""One process of the training, from its start to its end."""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from mnist_nn.net import Images
from mnist_nn.parallel.rank0 import Job, Recorder, read_inputs
from mnist_nn.parallel.rendezvous import JOIN_SECONDS, Address, RankInfo, open_store
from mnist_nn.parallel.settings import PROG, Settings
from mnist_nn.parallel.train import DistributedTraining, TrainingData
from mpitune.devices.choose import usable_cores
from mpitune.errors import Exit, UsageError, print_error
from mpitune.processes.output import tag_output


def check_machine(settings: Settings) -> tuple[str, str]:
    """(backend, "cuda" or "cpu"). Raises UsageError where this machine does not have what is asked for."""
    cuda = not settings.no_cuda and torch.cuda.is_available()
    nccl = dist.is_nccl_available()
    backend = settings.backend or ("nccl" if cuda and nccl else "gloo")
    if backend == "nccl" and not cuda:
        without = "--no-cuda leaves none" if settings.no_cuda else what_torch_sees()
        raise UsageError(f"--backend nccl needs GPUs: {without}: give --backend gloo")
    if backend == "nccl" and not nccl:
        raise UsageError(f"--backend nccl: PyTorch {torch.__version__} was built without it: give --backend gloo")
    return backend, "cuda" if cuda else "cpu"


def what_torch_sees() -> str:
    """PyTorch's version and its number of GPUs, in words."""
    return f"PyTorch {torch.__version__} sees {torch.cuda.device_count() or 'no'} GPU"


def run(
    settings: Settings, rank_info: RankInfo, address: Address, name: str, began: float, joining_seconds: float
) -> Exit:
    """Train in this process as one rank, with the store at `address`, in which `name` is that of this attempt.

    `began` is the time at which the command began, which has waited `joining_seconds` for others so far.

    Where an exception ends the training, the process ends at once. The others do so too, when their connections to it
    are closed; a silent one, or one that is lost before they are connected, they wait for JOIN_SECONDS.
    """
    if rank_info.nodes > 1:
        tag_output(f"[{socket.gethostname()} {rank_info.rank}] ")
    backend, kind = check_machine(settings)
    device = (
        torch.device(kind, rank_info.local_rank % torch.cuda.device_count()) if kind == "cuda" else torch.device(kind)
    )
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, usable_cores() // rank_info.local_size))
    if rank_info.nodes == 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # gloo asks for no secret: nobody outside shall reach it
    try:
        here = time.time()
        if kind == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(
            backend, store=dist.PrefixStore(f"{name}/group", open_store(address)), rank=rank_info.rank,
            world_size=rank_info.size, device_id=device if backend == "nccl" else None,
            timeout=timedelta(seconds=JOIN_SECONDS),
        )  # fmt: skip
        status = _train(settings, rank_info, device, backend, began, joining_seconds + time.time() - here)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(Exit.ERROR)  # an orderly end would wait for the others
    return status


def _train(
    settings: Settings, rank_info: RankInfo, device: torch.device, backend: str, began: float, rendezvous_seconds: float
) -> Exit:
    """Only rank 0 reads, writes and says something; its status counts."""
    recorder: Recorder | None = None
    job: Job | UsageError | None = None
    if rank_info.rank == 0:
        try:
            inputs = read_inputs(settings, rank_info.size)
            recorder = Recorder(settings, rank_info, device=device.type, backend=backend, inputs=inputs)
            job = inputs.job
        except UsageError as error:
            job = error
    job = _broadcast_object(job, device)
    try:
        if isinstance(job, UsageError):
            raise job
        assert job is not None
        data = _broadcast_arrays(recorder.inputs.arrays if recorder else None, job, device)
        training = DistributedTraining(job.settings, job.rule, job.params, rank_info, device, data)
        if job.checkpoint:
            training.restore(job.checkpoint)

        if recorder:
            recorder.startup_seconds, recorder.rendezvous_seconds = time.time() - began, rendezvous_seconds

        def keep() -> None:
            state = training.state()
            stored = _broadcast_object(recorder and recorder.keep(state), device)
            if stored is not None:
                raise stored

        while len(training.epochs) < job.settings.epochs:
            training.epoch(recorder.log if recorder else None, keep)
            keep()
        state = training.state()
        stored = _broadcast_object(recorder and recorder.finish(state), device)
        if stored is not None:
            raise stored
    except (UsageError, FloatingPointError) as error:
        return print_error(PROG, error, rank_info.rank)
    return Exit.DONE


def _broadcast_object(thing: Any, device: torch.device) -> Any:
    """Send an object of rank 0 to all processes."""
    things = [thing]
    dist.broadcast_object_list(things, src=0, device=device)
    return things[0]


def _broadcast_arrays(arrays: dict[str, Any] | None, job: Job, device: torch.device) -> TrainingData:
    """Rank 0's arrays on every device."""
    data: dict[str, Any] = {}
    for name, shape in job.shapes.items():
        there = torch.empty(shape, dtype=torch.uint8, device=device)
        if arrays:
            there.copy_(torch.tensor(arrays[name]))
        dist.broadcast(there, src=0)
        data[name] = there.long() if len(shape) == 1 else Images(there, job.settings.max_pixel)
    return TrainingData(**data)
