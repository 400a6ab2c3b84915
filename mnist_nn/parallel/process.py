"""The processes of the training on this node: their start, and one of them from its start to its end."""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, spawn

from mnist_nn.parallel.rank0 import Job, Recorder
from mnist_nn.parallel.rendezvous import JOIN_TIME, Address, RankInfo, join, open_store, ranks_here
from mnist_nn.parallel.settings import PROG, Settings, launch_info
from mnist_nn.parallel.train import DistributedTraining
from mpitune.devices.choose import usable_cores, visible_gpus
from mpitune.errors import Exit, UsageError, print_error
from mpitune.processes.process import die_with


def start(settings: Settings, began: float) -> int:
    """Find the other nodes and train with them, in this process or in several that it starts. Raises UsageError.

    Returns the exit status; where processes end together, that of rank 0. `began` is when the command began.
    """
    problem, n_gpus = "", 0
    try:
        _, kind = check_machine(settings)
        n_gpus = torch.cuda.device_count() if kind == "cuda" else 0
        if kind == "cpu" and not settings.no_cuda and (n := len(visible_gpus())):
            host = socket.gethostname()
            print(f"{PROG}: {host} has {n} GPUs, but {what_torch_sees()}: training on its CPU", file=sys.stderr)
    except UsageError as error:
        if launch_info().rank == 0:
            raise
        problem = str(error)  # only this node may have it, so the others must hear of it
    joining = time.time()
    meeting = join()
    ranks = ranks_here(meeting, settings, n_gpus, problem)
    times, status = (began, time.time() - joining), 0
    if len(ranks) == 1:
        status = run(settings, ranks[0], meeting.store, *times)
    else:
        try:
            spawn(_child, (settings, ranks, meeting.address, *times), len(ranks))  # where one fails it ends all
        except ProcessExitedException as error:
            status = error.exit_code if error.exit_code > 0 else 128 - error.exit_code
            if error.exit_code < 0:
                print(f"{PROG}: {error}", file=sys.stderr)
    if meeting.transport is not None:
        if status:
            meeting.transport.abort(status)
        meeting.transport.close()
    return status


def _child(number: int, settings: Settings, ranks: list[RankInfo], address: Address, *times: float) -> None:
    die_with(os.getppid())  # torch would have SIGINT sent, which is ignored under nohup
    sys.exit(run(settings, ranks[number], open_store(address), *times))


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


def run(settings: Settings, rank_info: RankInfo, store: Any, began: float, joining_seconds: float) -> Exit:
    """Train in this process as one rank. The command has waited `joining_seconds` for others so far.

    Where an exception ends the training, the process ends at once. The others do so too, when their connections to it
    are closed; a silent one, or one that is lost before they are connected, they wait for JOIN_TIME.
    """
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
            backend, store=dist.PrefixStore("group", store), rank=rank_info.rank, world_size=rank_info.size,
            device_id=device if backend == "nccl" else None, timeout=JOIN_TIME,
        )  # fmt: skip
        _train(settings, rank_info, device, backend, began, joining_seconds + time.time() - here)
        dist.barrier()
        dist.destroy_process_group()
    except (UsageError, FloatingPointError) as error:  # all processes have it
        status = print_error(PROG, error, rank_info.rank)
        dist.barrier()
        dist.destroy_process_group()
        return status
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(Exit.ERROR)  # an orderly end would wait for the others
    return Exit.DONE


def _train(
    settings: Settings, rank_info: RankInfo, device: torch.device, backend: str, began: float, rendezvous_seconds: float
) -> None:
    """Only rank 0 reads, writes and says something; all raise what it raises."""
    recorders: list[Recorder] = []

    def read() -> Job:
        recorders.append(Recorder(settings, rank_info, device=device.type, backend=backend))
        return recorders[0].job

    job: Job = _by_rank0(rank_info.rank, read, device)
    recorder = recorders[0] if recorders else None
    training = DistributedTraining(job.settings, job.params, rank_info, device, job.arrays)
    if job.checkpoint:
        training.restore(job.checkpoint)
    if recorder:
        recorder.startup_seconds, recorder.rendezvous_seconds = time.time() - began, rendezvous_seconds

    def keep() -> None:
        state = training.state()
        _by_rank0(rank_info.rank, lambda: recorders[0].keep(state), device)

    while len(training.epochs) < job.settings.epochs:
        training.epoch(recorder.log if recorder else None, keep)
        keep()
    state = training.state()
    _by_rank0(rank_info.rank, lambda: recorders[0].finish(state), device)


def _by_rank0(rank: int, work: Callable[[], Any], device: torch.device) -> Any:
    """What `work` returns in rank 0. A UsageError there is raised in all processes, so that none waits."""
    told: list[Any] = [None, None]
    if rank == 0:
        try:
            told[0] = work()
        except UsageError as error:
            told[1] = error
    dist.broadcast_object_list(told, src=0, device=device)
    if told[1] is not None:
        raise told[1]
    return told[0]
