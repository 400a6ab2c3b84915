"""Train one network on many devices at once, data parallel.

python -m mnist_nn.ddp                                     here: one process per GPU, or one on the CPU
mpirun --map-by ppr:1:node python -m mnist_nn.ddp          one process per node, which starts one per GPU
torchrun --nproc-per-node=4 -m mnist_nn.ddp                so does srun; docs/training.md has all ways
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from mnist_nn.parallel.rendezvous import RankInfo, join, launch_info, ranks_here
from mnist_nn.parallel.settings import PROG, ConfigUnreadable, Settings, parse_with_config
from mpitune.devices.choose import visible_gpus
from mpitune.devices.probe import NotInstalled, require
from mpitune.errors import UsageError, print_error
from mpitune.folders import set_cache_variables
from mpitune.processes.output import outlive_readers
from mpitune.processes.process import die_with, require_linux, started_at
from mpitune.settings import Parser, add_settings, from_namespace
from mpitune.storage.provenance import code_and_libraries


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status; where processes end together, that of rank 0."""
    parser, began = Parser(prog=PROG, description=Settings.__doc__), _began()
    try:
        add_settings(parser, Settings)
        settings = from_namespace(Settings, parse_with_config(parser, arguments))
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
        if restarts.isdigit() and int(restarts):  # torchrun has lost a process and starts all again
            settings = dataclasses.replace(settings, resume=True)
        require("torch")
        # Threads that spin at the end of each operation take the cores that the other processes need. OpenMP reads this
        # when PyTorch is imported.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        import torch

        from mnist_nn.parallel.process import check_machine, run, what_torch_sees

        require_linux()
        set_cache_variables()
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
        rendezvous = join()
        versions = code_and_libraries("common", "mnist_nn")
        ranks = ranks_here(
            rendezvous, settings.nproc_per_node, n_gpus, problem, versions, settings.allow_mixed_versions
        )
    except (ConfigUnreadable, NotInstalled) as error:  # on this host alone, it may be
        return print_error(f"{PROG} on {socket.gethostname()}", error)
    except UsageError as error:
        return print_error(PROG, error, launch_info().rank)
    shared = rendezvous.address, rendezvous.run, began, time.time() - joining
    status = run(settings, ranks[0], *shared) if len(ranks) == 1 else _start(settings, ranks, *shared)
    if rendezvous.transport is not None:
        if status:
            rendezvous.transport.abort(status)
        rendezvous.transport.close(status)
    return status


def _began() -> float:
    """The Unix time at which this program began, or torchrun, which waits for other nodes before it starts it."""
    return started_at(os.getppid()) if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0" else time.time()


def _start(settings: Settings, ranks: Sequence[RankInfo], *shared: Any) -> int:
    """Start the processes of this node and wait for them; when one fails, end the others."""
    context = multiprocessing.get_context("spawn")
    running: dict[int, Any] = {}
    for rank_info in ranks:
        process = context.Process(target=_child, args=(os.getpid(), settings, rank_info, *shared))
        process.start()
        running[process.sentinel] = process
    status = 0
    while running and not status:
        for sentinel in multiprocessing.connection.wait(list(running)):
            process = running.pop(sentinel)  # type: ignore[arg-type]
            process.join()
            if process.exitcode < 0:
                print(f"{PROG}: a process was ended by signal {-process.exitcode}", file=sys.stderr)
            status = status or (process.exitcode if process.exitcode >= 0 else 128 - process.exitcode)
    for process in running.values():
        process.kill()
        process.join()
    return status


def _child(parent: int, *arguments: Any) -> None:
    from mnist_nn.parallel.process import run

    die_with(parent)
    sys.exit(run(*arguments))


if __name__ == "__main__":
    outlive_readers()
    sys.exit(main())
