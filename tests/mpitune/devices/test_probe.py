"""Processes that answer questions about a device: what they said in time counts, and how they ended is told."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator

import pytest

from mpitune.devices import probe
from mpitune.devices.devices import CPU

LIMIT_S = 60.0


def in_steps(end: str) -> Iterator[dict[str, object]]:
    """Two answers, then the end that is asked for."""
    yield {"rows": [1]}
    yield {"rows": [1, 2]}
    if end == "hangs":
        time.sleep(600)
    if end == "crashes":
        ctypes.string_at(0)
    if end == "raises":
        raise ValueError("no third")


def hangs() -> None:
    """No answer at all."""
    time.sleep(600)


@pytest.mark.parametrize(
    ("end", "found"),
    [
        ("well", {"rows": [1, 2]}),
        ("crashes", {"rows": [1, 2], "ended": "the process ended with status -11"}),
        ("raises", {"error": "ValueError: no third"}),
    ],
)
def test_the_last_answer_counts(end: str, found: dict[str, object]) -> None:
    asked = probe.begin(CPU, "tests.mpitune.devices.test_probe:in_steps", arguments=[end])
    assert probe.answer(asked, LIMIT_S) == found


def test_what_was_said_before_the_limit_counts() -> None:
    found, limit_s = dict[str, object](), 1.0
    while found.get("rows") != [1, 2] and limit_s < LIMIT_S:  # a loaded machine takes longer to start a process
        limit_s *= 2
        found = probe.answer(
            probe.begin(CPU, "tests.mpitune.devices.test_probe:in_steps", arguments=["hangs"]), limit_s
        )
    assert found == {"rows": [1, 2], "ended": f"no answer within {limit_s:g} s"}


def test_no_answer_is_an_error() -> None:
    asked = probe.begin(CPU, "tests.mpitune.devices.test_probe:hangs")
    assert probe.answer(asked, 0.1) == {"error": "no answer within 0.1 s"}
    asked = probe.begin(CPU, "no.such.module:function")
    assert "ModuleNotFoundError" in str(probe.answer(asked, LIMIT_S)["error"])
