"""From a command line to a study: what `python -m mnist_svm` and a user's own script call."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from mpitune.engine import rank
from mpitune.engine.progress import start_logging
from mpitune.errors import Exit, StudyError, UsageError, print_error
from mpitune.experiment import Experiment
from mpitune.options import RunOptions
from mpitune.processes.output import outlive_readers
from mpitune.processes.process import STOPS
from mpitune.processes.stops import Stopped, Stops, ending_at_stops
from mpitune.ranks import launch as how_launched
from mpitune.ranks.launch import Launch, connect, launched
from mpitune.report import write_page
from mpitune.settings import Parser, add_settings, from_namespace

log = logging.getLogger(__name__)


def run(experiment: type[Experiment], arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the experiment that the command line describes, and exit with its status."""
    outlive_readers()
    status = main(experiment, sys.argv[1:] if arguments is None else arguments)
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)  # while Python ends: the status says what became of the study
    sys.stdout.flush()
    sys.exit(int(status))


def main(experiment: type[Experiment], arguments: Sequence[str]) -> Exit:
    """As `run`, but returns the status. Only rank 0 reports errors that the user can fix."""
    launch, name = launched(), name_of(experiment)
    try:
        with ending_at_stops() as stops:
            return _main(experiment, name, arguments, launch, stops)
    except Stopped as stopped:
        if launch.rank == 0:
            print(f"{name}: {stopped}", file=sys.stderr)
        return Exit.STOPPED
    except StudyError as error:
        return print_error(name, error)


def _main(experiment: type[Experiment], name: str, arguments: Sequence[str], launch: Launch, stops: Stops) -> Exit:
    parser = parser_of(experiment, name)
    try:
        if how_launched.others_wait:
            raise UsageError("all ranks of this program run it: start it by python, without -m mpitune")
        namespace = parser.parse_args(list(arguments))
        settings = from_namespace(experiment, namespace)
        namespace.results = namespace.results or Path("results", name)
        options = from_namespace(RunOptions, namespace)
        start_logging(launch.rank, options)
        stops.hold()  # a rank that has begun MPI and ends by itself would wait for the others, which wait for it
        transport = connect(launch, options.expect_nodes, options.heartbeat_timeout)
    except UsageError as error:
        return print_error(parser.prog, error, launch.rank)
    with rank.taking_part(name, transport):
        stops.release()
        try:
            ended = rank.run(settings, name, options=options, transport=transport, finish=write_page)
            status = ended.status
            if status == Exit.ERROR:
                log.error("%s", ended.cause)
        except UsageError as error:
            status = print_error(parser.prog, error, transport.rank)
        transport.close()  # where ranks wait for rank 0, which makes its report
    return status


def name_of(experiment: type[Experiment]) -> str:
    """The program's name: its package, or the script's file name."""
    package = experiment.__module__.split(".")[0]
    return Path(sys.argv[0]).stem or "experiment" if package == "__main__" else package


def parser_of(experiment: type[Experiment], name: str) -> argparse.ArgumentParser:
    """The command line of an experiment in the program of that name."""
    in_package = experiment.__module__ != "__main__"
    prog = f"python -m {name}" if in_package else os.path.basename(sys.argv[0])
    summary = (experiment.__doc__ or "").strip().split("\n\n")[0]
    parser = Parser(prog=prog, description=summary)
    add_settings(parser, experiment)
    add_settings(parser, RunOptions, "how it is run")
    return parser
