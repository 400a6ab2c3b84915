"""Train one network on many devices at once, data parallel.

python -m mnist_nn.ddp                                     here: one process per GPU, or one on the CPU
mpirun --map-by ppr:1:node python -m mnist_nn.ddp          one process per node, which starts one per GPU
torchrun --nproc-per-node=4 -m mnist_nn.ddp                so does srun; docs/training.md has all ways
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
import time
from collections.abc import Sequence

from mnist_nn.parallel.settings import PROG, ConfigUnreadable, Settings, launch_info, parse_with_config
from mpitune.devices.probe import NotInstalled, require
from mpitune.errors import UsageError, print_error
from mpitune.folders import set_cache_variables
from mpitune.processes.output import outlive_readers
from mpitune.processes.process import require_linux
from mpitune.settings import Parser, add_settings, from_namespace


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status; where processes end together, that of rank 0."""
    parser, began = Parser(prog=PROG, description=Settings.__doc__), time.time()
    try:
        add_settings(parser, Settings)
        settings = from_namespace(Settings, parse_with_config(parser, arguments))
        if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":  # torchrun has lost a process and starts all again
            settings = dataclasses.replace(settings, resume=True)
        require("torch")
        require_linux()
        set_cache_variables()
        # Threads that spin at the end of each operation take the cores that the other processes need. OpenMP reads this
        # when PyTorch is imported.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        from mnist_nn.parallel.process import start

        return start(settings, began)
    except (ConfigUnreadable, NotInstalled) as error:  # on this host alone, it may be
        return print_error(f"{PROG} on {socket.gethostname()}", error)
    except UsageError as error:
        return print_error(PROG, error, launch_info().rank)


if __name__ == "__main__":
    outlive_readers()
    sys.exit(main())
