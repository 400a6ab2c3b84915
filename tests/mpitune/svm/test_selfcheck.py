"""The check of the solver on a device finds what is wrong with one: faults put into its stand-in."""

from __future__ import annotations

import pytest

from mnist_svm.solvers import name_here, trust
from mpitune.devices.selfcheck import Verdict, run
from mpitune.svm.cuda.selfcheck import FINDINGS
from tests.mpitune.svm.emulator import COMPILER
from tests.stand_ins import MODULES

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the kernel for the host")
SMALL = ("10", "64")


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sets a fault by its environment variable; cupy is the stand-in."""
    monkeypatch.syspath_prepend(str(MODULES))
    return monkeypatch


def checked(faulty: pytest.MonkeyPatch, fault: str, limit_s: float = 200.0) -> Verdict:
    faulty.setenv("STAND_IN_FAULT", fault)
    return run("mpitune.svm.cuda.selfcheck", *SMALL, limit_s=limit_s)


@pytest.mark.slow
def test_a_sound_device_passes(faulty: pytest.MonkeyPatch) -> None:
    verdict = checked(faulty, "")
    assert verdict.problem == "" and tuple(verdict.findings) == FINDINGS, verdict


@pytest.mark.slow
def test_a_wrong_scale_of_a_warm_start_does_no_harm(faulty: pytest.MonkeyPatch) -> None:
    """Multipliers and gradient are scaled by one number between 1 and the ratio of the C, so both stay right."""
    assert checked(faulty, "scale").problem == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "finding", "said"),
    [
        ("race", "solutions", "on the GPU is none"),
        ("mask", "solutions", "did not converge"),
        ("intercept", "solutions", "the intercept is wrong by"),
        ("same", "solutions", "the optimality conditions are violated by"),
        ("bound", "solutions", "multipliers are outside of their bounds by"),
        ("leak", "memory is given back", "bytes of the GPU's memory are not given back"),
        ("tf32", "kernel matrices", "float32 allows 1e-5 (TF32?)"),
    ],
)
def test_a_fault_of_what_is_computed_is_found(fault: str, finding: str, said: str, faulty: pytest.MonkeyPatch) -> None:
    verdict = checked(faulty, fault)
    assert said in verdict.findings[finding], verdict
    assert verdict.problem


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("crash", "killed by SIGSEGV"),
        ("hang", "no answer within 15 s"),
        ("display", "drives a display"),
    ],
)
def test_a_process_that_does_not_end_well_is_not_trusted(fault: str, said: str, faulty: pytest.MonkeyPatch) -> None:
    verdict = checked(faulty, fault, limit_s=15.0 if fault == "hang" else 200.0)
    assert said in verdict.problem, verdict


@pytest.mark.parametrize(("problem", "auto"), [("", "shared"), ("3e-2 too much", "shared-on-cpu")])
def test_what_auto_means_on_a_gpu(
    problem: str, auto: str, faulty: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trust.is_trusted.cache_clear()
    faulty.setattr(trust, "verdict_of_gpu", lambda: Verdict({"solutions": problem}))
    assert name_here("auto", "cuda") == auto
    assert ("the one for CPUs is used, on a core for each slot" in caplog.text) == bool(problem)
    caplog.clear()
    assert name_here("shared", "cuda") == "shared"
    assert ("used as asked, though it failed its check (solutions: 3e-2 too much)" in caplog.text) == bool(problem)
    assert [name_here(name, "cpu") for name in ("auto", "shared", "sklearn")] == ["shared", "shared", "sklearn"]
    assert name_here("cuml", "cuda") == "cuml"
    trust.is_trusted.cache_clear()


def test_without_cupy_the_cpus_solver_is_used(caplog: pytest.LogCaptureFixture) -> None:
    if trust.find_spec("cupy") is not None:
        pytest.skip("cupy is here")
    trust.is_trusted.cache_clear()
    assert name_here("auto", "cuda") == "shared-on-cpu" and "the GPU's solver needs cupy" in caplog.text
