"""Compilation: who says so, when, and who waits."""

import logging
import threading
from contextlib import closing
from typing import Any

import pytest

from jit.private import locked, private_folder

numba = pytest.importorskip("numba")
from numba.core import event  # noqa: E402

from kernel_svm.warm import OneCompiles  # noqa: E402


class Heard(event.Listener, logging.Handler):
    """What happens, in its order: lines of the log, and beginnings and ends of compilations."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.all: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.all.append(record.getMessage())

    def on_start(self, event: Any) -> None:
        self.all.append("begins")

    def on_end(self, event: Any) -> None:
        self.all.append("ends")


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # a lock of this test's own
    heard = Heard()
    logger = logging.getLogger("kernel_svm.warm")
    logger.addHandler(heard)
    yield heard
    logger.removeHandler(heard)


def compile_twice(heard: Heard) -> None:
    with (
        closing(OneCompiles()) as one,
        event.install_listener("numba:compile", one),
        event.install_listener("numba:compile", heard),
    ):
        for number in (1, 1.0):  # two versions of one function
            numba.njit(lambda x: x + x)(number)


def test_compiling_is_announced_once_before_it_begins(heard: Heard) -> None:
    compile_twice(heard)
    assert heard.all == ["compiling the solver (once per machine, about 20 s)", *["begins", "ends"] * 2]
    with locked(private_folder(local=True) / "warm-up.lock"):
        pass  # it was given back


def test_a_process_waits_for_the_one_that_compiles_and_says_nothing(heard: Heard) -> None:
    with locked(private_folder(local=True) / "warm-up.lock"):
        other = threading.Thread(target=compile_twice, args=(heard,))
        other.start()
        other.join(0.3)
        assert other.is_alive() and heard.all == []
    other.join(60)
    assert heard.all == ["begins", "ends"] * 2
