"""One contract for both transports. Ranks are real processes of a real mpirun."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpitune.ranks.transport import LocalTransport
from tests.helpers import TOYS

from . import contract

Program = Callable[..., Any]


@pytest.mark.parametrize("case", ["messages", "large_messages", "starts"])
def test_one_process_keeps_the_contract(case: str) -> None:
    transport = LocalTransport()
    contract.CASES[case](transport)
    transport.close()


def test_ranks_keep_the_contract(program: Program) -> None:
    cases = ("messages", "large_messages", "starts", "messages_of_the_script")
    done = program("-m", "tests.mpitune.ranks.contract", *cases, ranks=3)
    assert done.stdout.count(" ended") == 3


def test_a_library_that_has_no_room_for_a_thread_is_refused(program: Program, tmp_path: Path) -> None:
    study = (*TOYS, "1", "--gpu", "none", "--workers", "1", "--results", tmp_path / "r")
    done = program(*study, ranks=2, env={"MPI4PY_RC_THREAD_LEVEL": "funneled"}, status=None)
    assert done.stderr.count("gives less than MPI_THREAD_SERIALIZED") == 1 and "Traceback" not in done.stderr
    assert not (tmp_path / "r").exists()


LEAVES_ALONE = """
import time
from mpitune.ranks import mpi
from mpitune.ranks.launch import connect, launched
mpi.FINALIZE_SECONDS = 1.0
transport = connect(launched())
if transport.rank == 1:
    transport.close()
transport.settle()
time.sleep(600)  # as if rank 1 could not be reached any more
"""


def test_a_rank_does_not_wait_for_ever_for_the_others_to_end(program: Program) -> None:
    done = program("-c", LEAVES_ALONE, ranks=2, status=None, timeout=300)
    assert done.returncode != 0 and "signal 14" in done.stderr
