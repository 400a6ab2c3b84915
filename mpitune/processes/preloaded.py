"""What the server that forks workers does before its first fork: it imports the modules that they need.

Python's server imports this module, with ORDER in its environment; nobody else does.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import shutil
import signal
import time
from contextlib import suppress
from types import FrameType

from mpitune.processes.process import STOPS, die_with, of_this_process

PRELOAD_VARIABLE = "MPITUNE_PRELOAD"  # the rank's process, its own folder for sockets or "", the modules, as JSON
THREADED = 113  # exit status of a server that cannot fork, since a module has started threads
THREAD_ENDED = signal.SIGRTMIN + 1  # the thread that the server belongs to has ended, and perhaps the rank


def _serve(rank: int, folder: str, modules: list[str]) -> None:
    """Import modules, and see to it that the server ends with its rank."""

    def remove() -> None:
        if folder and os.getppid() != rank:  # it was killed, so it has not done so itself
            shutil.rmtree(folder, ignore_errors=True)

    def hear(number: int, frame: FrameType | None) -> None:
        if os.getppid() != rank:
            remove()
            os._exit(0)

    # The pipe that ends a server closes a moment before its rank is gone, whose end is then heard.
    atexit.register(of_this_process(lambda: time.sleep(1.0)))
    signal.signal(THREAD_ENDED, hear)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    os.setsid()  # what is sent to the rank's group is the rank's to hear, and it may be SIGKILL
    remove()  # where the rank has ended by now
    die_with(rank, THREAD_ENDED)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    for name in modules:
        with suppress(Exception):  # the workers will say why
            importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:  # a fork keeps the locks of threads, but not the threads
        os._exit(THREADED)
    gc.collect()
    gc.freeze()  # a collection in a worker would else write to each page that it shares with the others


if PRELOAD_VARIABLE in os.environ:
    _serve(*json.loads(os.environ.pop(PRELOAD_VARIABLE)))
