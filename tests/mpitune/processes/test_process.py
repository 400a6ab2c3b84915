"""Processes that begin while their rank is told to stop."""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection

from mpitune.processes.process import STOPS, die_with, start_resource_tracker, stops_wait
from tests.helpers import PATIENCE


def _helper(parent: int, pipe: Connection) -> None:
    die_with(parent)
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    time.sleep(0.01)
    pipe.send("lives")


def test_signals_to_stop_do_not_end_a_process_that_begins() -> None:
    start_resource_tracker()  # as an agent does: its start would end what stops_wait does
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    helper = context.Process(target=_helper, args=(os.getpid(), sender))
    with stops_wait():
        helper.start()
    sender.close()
    for number in STOPS:  # long before Python has started in it
        os.kill(helper.pid or 0, number)
    assert receiver.poll(PATIENCE) and receiver.recv() == "lives"
    helper.join(PATIENCE)
    assert helper.exitcode == 0
