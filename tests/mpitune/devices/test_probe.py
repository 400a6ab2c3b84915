"""Processes that answer questions about a device or a library, and what is said where there is no good answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mpitune.devices import probe
from mpitune.devices.choose import CPU
from tests.helpers import ROOT
from tests.stand_ins import B

LIMIT_S = 60.0
TOO_OLD = "RuntimeError: The NVIDIA driver on your system is too old"
WITHOUT_CUDA = "AssertionError: Torch not compiled with CUDA enabled"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """library(name, content) makes a library that processes find."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")

    def make(name: str, content: str) -> None:
        (tmp_path / f"{name}.py").write_text(content)

    return make


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("print('words of the library')", {"installed": True}),
        ("raise ValueError('no CUDA')", {"error": "ValueError: no CUDA"}),
        ("import ctypes; ctypes.string_at(0)", {"error": "the process ended with status -11"}),
    ],
)
def test_a_library_works_or_not(content: str, found: dict[str, object], library: Any) -> None:
    library("example", content)
    assert probe.answer(probe.begin(CPU, "example"), LIMIT_S) == found


def test_a_library_that_is_not_there() -> None:
    assert probe.answer(probe.begin(CPU, "no_such_library"), LIMIT_S) == {"installed": False}


def test_one_that_hangs_is_ended(library: Any) -> None:
    library("example", "import time; time.sleep(600)")
    assert probe.answer(probe.begin(CPU, "example"), 0.5) == {"error": "no answer within 0.5 s"}


@pytest.mark.parametrize("error", [TOO_OLD, WITHOUT_CUDA, None])
def test_a_library_that_cannot_use_the_gpu_is_told_with_the_fix(
    error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "begin", lambda device, what: what)
    monkeypatch.setattr(probe, "answer", {"torch": {"error": error} if error else {"installed": True}}.get)
    fix = "install the requirements-cu*.txt that fits the driver (nvidia-smi shows its CUDA version)"
    assert probe.why_unusable("torch", B)() == (f"torch cannot use cuda:{B} ({error}): {fix}" if error else "")
