"""What a GPU computes, against autograd in double precision on the CPU and against the CPU's own training."""

from __future__ import annotations

import gc
import subprocess
import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from mnist_nn import net, training  # noqa: E402
from mnist_nn.experiment import Bagging  # noqa: E402
from mnist_nn.steps.graphed import Graphed, Prepared  # noqa: E402
from mnist_nn.steps.manual import make_step  # noqa: E402
from mpitune.experiment import WorkerContext  # noqa: E402
from mpitune.trial import Evaluation, NoRoom, Trial  # noqa: E402
from tests.helpers import ROOT  # noqa: E402
from tests.mnist_nn.networks import AutogradStep, architecture, batches  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
LEARNING = dict(learning_rate=0.05, momentum=0.9)
TOLERANCE = 3e-5  # of a loss, and of the largest change of a kind of weights; rounding to float32 makes 2e-6 on a CPU
N_STEPS = 8


class Trained(NamedTuple):
    losses: list[float]
    weights: dict[str, Any]


class Case(NamedTuple):
    """Batches on the CPU, of which the last is smaller, initial weights, and what autograd makes of them in float64."""

    batches: list[tuple[Any, Any]]
    initial: dict[str, Any]
    expected: Trained


def trained(learn: Any, steps: list[tuple[Any, Any]], device: Any, dtype: Any) -> Trained:
    losses = [float(learn(pixels.to(device, dtype), labels.to(device))) for pixels, labels in steps]
    return Trained(losses, {name: weight.cpu().double() for name, weight in learn.finish().items()})


@cache
def case_of(channels: int, kernel: int, units: int, batch_size: int, seed: int) -> Case:
    params = dict(n_conv_layer=channels, kernel_size=kernel, n_hidden_layer=units)
    steps = list(batches(seed, N_STEPS, batch_size, (28, 28)))
    initial = net.initial_weights(params, (28, 28), 10, seed=seed, device=CPU)
    step = AutogradStep({name: w.double() for name, w in initial.items()}, **LEARNING)
    return Case(steps, initial, trained(step, steps, CPU, torch.float64))


@pytest.mark.parametrize("batch_size", [1, 10, 32])
@pytest.mark.parametrize(("network", "seed"), [((6, 5, 70), 0), ((10, 3, 40), 3)], ids=str)
@pytest.mark.parametrize(
    ("step", "device"),
    [
        pytest.param("manual", CPU, id="manual on the CPU"),
        pytest.param("manual", GPU, id="manual", marks=needs_gpu),
        pytest.param("graphed", GPU, id="manual, replayed", marks=needs_gpu),
    ],
)
def test_a_step_equals_autograd_in_double_precision(
    step: str, device: Any, network: tuple[int, int, int], seed: int, batch_size: int
) -> None:
    """With these seeds no unit comes so close to the kink of its ReLU, 2e-7, that rounding could change its side."""
    training.prepare(device)
    case = case_of(*network, batch_size, seed)
    weights = {name: torch.empty_strided(w.shape, w.stride(), device=device) for name, w in case.initial.items()}
    for name, weight in case.initial.items():
        weights[name].copy_(weight)
    again = {name: weight.clone() for name, weight in weights.items()}
    learn: Any = make_step(weights, (28, 28), batch_size=batch_size, **LEARNING)
    if step == "graphed":
        learn = Graphed(learn, (28, 28), batch_size, device)
        learn.load(again)
    found = trained(learn, case.batches, device, torch.float32)
    assert step != "graphed" or learn._graph is not None
    np.testing.assert_allclose(found.losses, case.expected.losses, rtol=TOLERANCE)
    for name, expected in case.expected.weights.items():
        change = float((expected - case.initial[name].double()).abs().max())
        assert float((found.weights[name] - expected).abs().max()) <= TOLERANCE * change, name


def learned(
    device: Any, n: int = 1003, seed: int = 0, rate: float = 5e-3, prepared: Prepared | None = None
) -> training.Trained:
    x, y = (torch.cat(parts)[:n].to(device) for parts in zip(*batches(8, 102, 10), strict=True))
    params = architecture(seed) | {"learning_rate": rate, "momentum": 0.3}
    seeds = np.random.SeedSequence(3)
    return training.train(
        params, net.Images(x), y, n_classes=10, epochs=6, seed=seeds, device=device, prepared=prepared
    )


def same_bits(one: training.Trained, other: training.Trained) -> bool:
    return one.losses == other.losses and all(
        torch.equal(weight, other.weights[name]) for name, weight in one.weights.items()
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnAGpu:
    @pytest.mark.parametrize("seed", [0, 2, 3])
    def test_a_training_has_the_epochs_and_losses_of_the_cpu(self, seed: int) -> None:
        found, expected = learned(GPU, seed=seed), learned(CPU, seed=seed)
        assert found.epochs == expected.epochs > 1
        np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-4)

    def test_two_trainings_have_the_same_bits(self) -> None:
        assert same_bits(learned(GPU), learned(GPU))

    def test_trainings_of_one_shape_share_a_capture_and_have_the_bits_of_new_ones(self) -> None:
        """Also after one that diverged."""
        prepared = Prepared()
        for rate in (1e30, 5e-3, 5e-3):
            found = learned(GPU, rate=rate, prepared=prepared)
            assert found.diverged == (rate > 1) and (rate > 1 or same_bits(found, learned(GPU)))
            graph = getattr(prepared._step, "_graph", None)
        assert graph is not None
        same = learned(GPU, prepared=prepared)
        assert same.epochs > 1 and prepared._step._graph is graph  # type: ignore[union-attr]

    def test_a_step_gives_its_memory_back_where_little_is_free(self, monkeypatch: pytest.MonkeyPatch) -> None:
        prepared = Prepared()
        learned(GPU, prepared=prepared)
        prepared.make_room(GPU)
        assert prepared._step is not None
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, 80 << 30))
        before = torch.cuda.memory_reserved()
        prepared.make_room(GPU)
        assert prepared._step is None and torch.cuda.memory_reserved() < before

    def test_fewer_images_than_a_batch(self) -> None:
        np.testing.assert_allclose(learned(GPU, n=7).losses, learned(CPU, n=7).losses, rtol=1e-4)

    def test_initial_weights_have_the_bits_of_the_cpu(self) -> None:
        """A GPU's own random stream depends on how many processors it has."""
        one, other = (net.initial_weights(architecture(1), (12, 12), 10, seed=5, device=each) for each in (CPU, GPU))
        assert all(torch.equal(weight, other[name].cpu()) for name, weight in one.items())

    def test_trainings_one_after_the_other_take_no_more_memory(self) -> None:
        """With a stream for each, cuBLAS would keep a workspace for each of the first 32."""
        reserved = []
        for _ in range(40):
            learned(GPU, n=60)
            gc.collect()
            torch.cuda.empty_cache()
            reserved.append(torch.cuda.memory_reserved())
        assert max(reserved[2:]) == reserved[2], reserved

    def test_a_network_without_room_is_refused_and_the_next_one_is_trained(self) -> None:
        experiment = Bagging(1, 1, dataset="digits", train_size=60, test_size=20, folds=2, epochs=2)
        objective = experiment.objective(WorkerContext("cuda", experiment.data()))
        small = next(next(iter(experiment.searches())))[0][0]
        large = Trial("large", {**small.params, "n_conv_layer": 100_000, "kernel_size": 2, "n_hidden_layer": 999_999})
        refused, answer = objective((large, small))
        assert isinstance(refused, NoRoom) and "GB and this worker has" in refused.reason
        assert isinstance(answer, Evaluation) and np.isfinite(answer.value("loss"))

    def test_a_step_that_cannot_be_captured_goes_on_as_it_is(self) -> None:
        """In a process of its own: PyTorch keeps the memory of one in which a capture has failed."""
        done = subprocess.run([sys.executable, "-c", WITHOUT_CAPTURE], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0 and done.stderr.count("the step cannot be captured") == 1, done.stderr


WITHOUT_CAPTURE = """
import torch
from mnist_nn.steps.graphed import WARM_UP, Graphed

class Waits:
    n, load, finish = 0, None, None

    def __call__(self, pixels, labels):
        pixels.sum().item()  # waits for the device, which a capture forbids
        self.n += 1
        return pixels.sum()

waits, x = Waits(), torch.ones(4, 3, device="cuda")
learn = Graphed(waits, (3,), 4, x.device)
assert [float(learn(x, x)) for _ in range(WARM_UP + 3)] == [12.0] * (WARM_UP + 3)
assert waits.n == WARM_UP + 3
"""
