"""How fast the solver iterates, measured on this CPU and on the stand-in for a GPU."""

from __future__ import annotations

import pytest

from mpitune.devices import probe
from mpitune.devices.devices import CPU, Device
from tests.mpitune.svm.emulator import COMPILER
from tests.stand_ins import MODULES

FUNCTION = "mnist_svm.solvers.rates:measured"


@pytest.mark.parametrize(
    "device", [CPU, pytest.param(Device("cuda:0", "0"), marks=pytest.mark.slow)], ids=["cpu", "cuda"]
)
def test_iterations_are_counted_and_timed(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    if device != CPU and COMPILER is None:
        pytest.skip("no C compiler to build the kernel for the host")
    monkeypatch.setenv("PYTHONPATH", str(MODULES))
    found = probe.answer(probe.begin(device, FUNCTION, threads=1, arguments=[device.kind, "inf", "60"]), 280)
    assert "error" not in found, found
    assert all(rate > 0 for rate in found["rates"]["iterations_per_second"].values())  # type: ignore[index]
    if device != CPU:
        assert found["rows"][-1][0] == "60 samples, one of 20 paths" and found["rows"][-1][2] == "10 us"  # type: ignore[index]
