"""The self-check of the training steps finds every fault that is put in, and trusts what has none."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from mnist_nn import rates, trust  # noqa: E402
from mnist_nn.objective import BaggingObjective, TrainingOptions  # noqa: E402
from mnist_nn.steps import choose  # noqa: E402
from mnist_nn.training import Trained  # noqa: E402
from mnist_nn.trust import WAYS, mixed_ways, trusted_ways  # noqa: E402
from mpitune._jit.compiler import missing_for_triton  # noqa: E402
from mpitune.devices.rates import NO_TIME, Budget  # noqa: E402
from mpitune.devices.selfcheck import Verdict, run  # noqa: E402
from mpitune.experiment import BEGINNINGS, WorkerContext  # noqa: E402
from mpitune.trial import Outcome, Result, Trial  # noqa: E402

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
NETWORK = dict(n_conv_layer=4, kernel_size=5, n_hidden_layer=30, learning_rate=0.01, momentum=0.5)


def verdict_with(
    fault: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, until: str, limit_s: float = 120
) -> Verdict:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return run("tests.mnist_nn.faults", fault, str(folder), until, limit_s=limit_s)


@pytest.mark.slow
def test_what_has_no_fault_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = verdict_with("none", tmp_path, monkeypatch, until="fused")
    assert verdict.problem == "" and all(map(verdict.trusts, WAYS))


@pytest.mark.parametrize(
    ("fault", "way", "problem"),
    [
        pytest.param("tf32 in autograd", "autograd", "differs by", marks=pytest.mark.slow),
        pytest.param("tf32 in products", "grouped", "differs by", marks=pytest.mark.slow),
        pytest.param("race", "grouped", "other bits", marks=pytest.mark.slow),
        pytest.param("stale graph", "grouped", "the replayed graph has other bits", marks=pytest.mark.slow),
        pytest.param("leak", "grouped", "bytes of memory are not given back", marks=pytest.mark.slow),
        pytest.param("neighbours", "grouped", "changes its neighbours", marks=pytest.mark.slow),
        pytest.param("tf32 in kernels", "fused", "the kernel's forward", marks=pytest.mark.slow),
        pytest.param("mask of units", "fused", "the kernel's derivatives", marks=pytest.mark.slow),
        pytest.param("mask of features", "fused", "the kernel's derivatives", marks=pytest.mark.slow),
        pytest.param("mask of images", "fused", "the kernel's forward", marks=pytest.mark.slow),
        pytest.param("crash", "fused", "killed by SIGSEGV after 'grouped'", marks=pytest.mark.slow),
    ],
)
def test_a_fault_is_found(fault: str, way: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = verdict_with(fault, tmp_path, monkeypatch, until=way)
    assert problem in verdict.problem and not verdict.trusts(way)
    assert all(verdict.trusts(plainer) for plainer in WAYS[: WAYS.index(way)])


@pytest.mark.slow
def test_a_hang_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine, the limit is the only thing that ends it."""
    verdict = verdict_with("hang", tmp_path, monkeypatch, until="fused", limit_s=40)
    assert "no answer within 40 s" in verdict.problem and not verdict.trusts("fused")


# What is made of a verdict


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what the check of this machine finds."""

    def found(**findings: str) -> None:
        trusted_ways.cache_clear()
        monkeypatch.setattr(trust, "verdict_of", lambda *_: Verdict(findings, "" if findings else "killed by SIGSEGV"))

    yield found
    trusted_ways.cache_clear()


@pytest.mark.parametrize(
    ("findings", "step", "says"),
    [
        (dict(autograd="", manual="", grouped="", fused=""), "grouped", ""),
        (dict(autograd="", manual="", grouped="", fused="no gcc"), "grouped", "the Triton kernels failed their check"),
        (dict(autograd="", manual="", grouped="other bits"), "manual", "(grouped: other bits): 'manual' is used"),
        (dict(autograd="", manual="differs"), "autograd", "(manual: differs): 'autograd' is used"),
        (dict(autograd="differs", manual="differs"), "autograd", "(autograd: differs): 'autograd' is used"),
        ({}, "autograd", "(killed by SIGSEGV): 'autograd' is used"),
    ],
)
def test_auto_takes_the_fastest_step_that_is_trusted(
    verdict: Any, caplog: pytest.LogCaptureFixture, findings: dict[str, str], step: str, says: str
) -> None:
    verdict(**findings)
    for _ in range(2):
        assert choose.step_for("auto", NETWORK, (28, 28), 10, batch_size=10, device=CUDA) == step
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == bool(says) and says in "".join(warnings)
    assert choose.step_for("grouped", NETWORK, (28, 28), 10, batch_size=10, device=CUDA) == "grouped"


def test_what_is_asked_for_is_obeyed_with_a_warning(verdict: Any, caplog: pytest.LogCaptureFixture) -> None:
    verdict(autograd="", manual="", grouped="other bits")
    trust.warn_untrusted("manual", 10)
    trust.warn_untrusted("auto", 10)
    assert not any("as asked" in record.getMessage() for record in caplog.records)
    trust.warn_untrusted("grouped", 10)
    assert "--step grouped is used as asked" in caplog.records[-1].getMessage()
    assert choose.step_for("grouped", NETWORK, (28, 28), 10, batch_size=10, device=CUDA) == "grouped"


def test_a_result_of_a_gpu_says_how_it_was_computed() -> None:
    trained = Trained({}, (1.0,), False, "fused")
    for device, found in ((CUDA, {"way": 3.0}), (torch.device("cpu"), {})):
        objective = BaggingObjective.__new__(BaggingObjective)
        objective.device = device
        assert objective.way_of(trained) == found


def test_a_study_that_mixes_ways_says_so() -> None:
    def outcome(key: str, **values: float) -> Outcome:
        return Outcome(Trial(key, {}), Result(key, {"loss": 1.0, **values}))

    one, other, cpu = outcome("a", way=3.0), outcome("b", way=0.0), outcome("c")
    failed = Outcome(Trial("d", {}), Result("d", error="out of memory"))
    for same in ([], [cpu, cpu], [one, one, failed], [failed]):
        assert mixed_ways(same) == ""
    assert mixed_ways([one, one, other]).endswith("2 by fused on a GPU, 1 by autograd on a GPU")
    assert "1 by a CPU's steps" in mixed_ways([one, one, cpu])


def test_what_triton_lacks_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "no-such-compiler" in missing_for_triton()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "gcc or clang" in missing_for_triton()
    (tmp_path / "gcc").touch(mode=0o755)
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    assert "python3-dev" in missing_for_triton()
    (tmp_path / "Python.h").touch()
    assert missing_for_triton() == ""


# Which step is the fastest there


RATES = choose.Rates(
    10, {1_000: {"grouped": 1e-5, "manual": 3e-5, "autograd": 4e-5}, 10**6: {"grouped": 9.0, "manual": 5.0}}
)


@pytest.mark.parametrize(
    ("n_weights", "trusted", "batch_size", "step"),
    [
        (100, {"grouped", "manual"}, 10, "grouped"),
        (30_000, {"grouped", "manual"}, 10, "grouped"),  # the measured size nearest to it, by their ratio
        (40_000, {"grouped", "manual"}, 10, "manual"),
        (40_000, {"grouped"}, 10, "grouped"),
        (1_000, set(), 10, "autograd"),
        (40_000, {"grouped", "manual"}, 20, "grouped"),  # not measured with these batches
    ],
)
def test_measured_rates_choose_among_the_steps_that_are_trusted(
    n_weights: int, trusted: set[str], batch_size: int, step: str
) -> None:
    assert choose.step_on_a_gpu(trusted, n_weights, batch_size, RATES) == step
    assert choose.step_on_a_gpu(trusted, n_weights, batch_size) == (sorted(trusted)[0] if trusted else "autograd")


def kept_in_a_journal(kept: Any) -> Any:
    return np.frombuffer(json.dumps({"Example GPU": kept}).encode(), np.uint8)


def test_a_worker_takes_the_rates_of_its_own_gpu_that_the_study_began_with(
    verdict: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose.rates_for("Example GPU", kept_in_a_journal(rates.as_json(RATES))) == RATES
    assert choose.rates_for("Another", kept_in_a_journal(rates.as_json(RATES))) is None
    assert choose.rates_for("Example GPU", None) is None
    for nonsense in (None, [], {"batch_size": 10}, {"batch_size": 10, "seconds": {"x": {}}},
                     {"batch_size": 10, "seconds": {"5": {"manual": -1}}}):  # fmt: skip
        assert choose.rates_for("Example GPU", kept_in_a_journal(nonsense)) is None
    verdict(autograd="", manual="", grouped="", fused="")
    monkeypatch.setattr("mnist_nn.objective.gpu_key", lambda: {"gpu": "Example GPU"})
    monkeypatch.setattr("mnist_nn.objective.on_device", lambda array, device: torch.from_numpy(array.copy()))
    monkeypatch.setattr("mnist_nn.objective.reservations", lambda device: None)
    slow = {"batch_size": 10, "seconds": {"20000": {"grouped": 2.0, "manual": 1.0}}}
    for beginnings, step in ((None, "grouped"), (kept_in_a_journal(slow), "manual")):
        data = {"train_images": np.zeros((1, 28, 28), np.uint8)}
        options = TrainingOptions(0, 5, 1, 10, 0.8, "auto", 255, False)
        kept = {} if beginnings is None else {BEGINNINGS: beginnings}
        objective = BaggingObjective(options, WorkerContext("cuda", {**data, **kept}))
        assert objective.plan(Trial("a", {**NETWORK, "fold": 0})).step == step
        assert objective.images.keys() == data.keys()


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_steps_are_measured(kind: str, verdict: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "cuda" is acted out on the CPU, where the grouped step runs without a graph."""
    verdict(autograd="", manual="", grouped="no graph", fused="")
    monkeypatch.setattr(rates, "COPY_BYTES", {"cpu": 1 << 20, "cuda": 1 << 20})
    monkeypatch.setattr(rates, "ROUND_S", 0.01)
    monkeypatch.setattr(rates, "SIZES", {"small": (2, 8, 5), "large": (8, 8, 64)})
    monkeypatch.setattr(rates, "device_of", lambda kind: CPU)
    *earlier, found = [json.loads(json.dumps(so_far)) for so_far in rates.measured(kind, largest="small")]
    assert [len(so_far["rows"]) for so_far in earlier] == [1, 2, 3]  # each counts where the process is ended then
    (times,) = found["rates"]["seconds"].values()
    assert set(times) == {"autograd", "manual"} and all(0 < seconds < 60 for seconds in times.values())
    assert [row[0] for row in found["rows"]] == ["a copy", "small, autograd", "small, manual", "small, the fastest"]
    assert found["rows"][-1][2] == "manual"
    *_, late = (json.loads(json.dumps(so_far)) for so_far in rates.measured(kind, "0.0"))  # only the smallest
    assert late["rates"]["seconds"].keys() == found["rates"]["seconds"].keys()
    assert [row[:2] for row in late["rows"][4:]] == [[f"large, {step}", NO_TIME] for step in ("autograd", "manual")]


def test_a_budget_counts_what_else_the_machine_does() -> None:
    budget = Budget(time.monotonic() + 60)
    assert budget.suffices(5) and not budget.suffices(61)
    time.sleep(1)  # as if others had the processor
    assert not budget.suffices(7)
