"""The training step against autograd, which is the definition."""

from functools import cache

import numpy as np
import pytest
import torch

from mnist_nn import net
from mnist_nn.steps import kernels
from mnist_nn.steps.graphed import Prepared
from mnist_nn.steps.manual import DenseHidden, KernelHidden, ManualStep, make_step
from tests.mnist_nn.networks import TOLERANCE, architecture, autograd_step, batches

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


def run(params, *, make=make_step, seed=0, n_steps=200, batch_size=10, shape=(12, 12), dtype=torch.float32):
    """Mean loss of every step, and the weights at the end."""
    learn = make(
        net.initial_weights(params, shape, 10, seed=seed, device=CPU),
        shape,
        batch_size=batch_size,
        learning_rate=params["learning_rate"],
        momentum=params["momentum"],
    )
    losses = [float(learn(x.to(dtype), y)) / len(x) for x, y in batches(seed, n_steps, batch_size, shape)]
    return np.array(losses), learn.finish()


@cache
def reference(params, options):
    return run(dict(params), make=autograd_step, **dict(options))


def assert_equal_to_autograd(params, **options):
    expected, expected_weights = reference(tuple(params.items()), tuple(options.items()))
    found, weights = run(params, **options)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=1e-6)
    assert list(weights) == list(expected_weights)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected_weights[name], rtol=1e-3, atol=1e-4)


def test_losses_equal_autograds_over_200_steps():
    """Of three architectures one may differ by more: where rounding decides on which side of the ReLU's kink an
    activation falls, training takes another path, as it does for autograd itself in another order of sums.
    """
    differences = []
    for seed in range(3):
        params = architecture(seed)
        expected, _ = reference(tuple(params.items()), (("seed", seed),))
        losses, _ = run(params, seed=seed)
        differences.append(float(np.max(np.abs(losses - expected) / np.maximum(expected, 0.1))))
    assert sorted(differences)[-2] < TOLERANCE and max(differences) < 0.01


@pytest.mark.parametrize("seed", range(8))
def test_in_double_precision_every_architecture_agrees(seed):
    """The algorithm by itself."""

    def in_double(make):
        return lambda weights, *others, **sgd: make({n: w.double() for n, w in weights.items()}, *others, **sgd)

    def by_products(weights, shape, **sgd):
        return ManualStep(weights, shape, lambda weight: DenseHidden(weight, **sgd), **sgd)

    params = architecture(seed)
    expected, found = (
        run(params, seed=seed, n_steps=40, make=in_double(make), dtype=torch.float64)[0]
        for make in (autograd_step, by_products)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch_size", [1, 16, 17])
def test_any_batch_size(batch_size):
    """Up to 16 by the kernels, above by PyTorch's products."""
    assert_equal_to_autograd(architecture(4), batch_size=batch_size, n_steps=80)


@pytest.mark.parametrize(
    "change",
    [
        {"kernel_size": 1},
        {"n_conv_layer": 1, "kernel_size": 12, "n_hidden_layer": 1},
        {"n_hidden_layer": kernels.LANES},
        {"n_hidden_layer": kernels.TILE_UNITS + 1},
        {"momentum": 0.0},
        {"momentum": 0.99, "learning_rate": 1e-3},
    ],
    ids=str,
)
def test_edges(change):
    params = architecture(3) | {"learning_rate": 0.01, "momentum": 0.2} | change
    assert_equal_to_autograd(params, n_steps=80)


def test_the_kernels_are_the_products_they_stand_for():
    """In particular for feature and unit counts that are no multiple of any tile of theirs."""
    generator = torch.Generator().manual_seed(1)
    for n_features, n_units, n in [(1, 1, 1), (7, 16, 10), (2051, 33, 10), (130, 1100, 5)]:
        weights = torch.randn(n_features, n_units, generator=generator)
        options = dict(batch_size=n, learning_rate=0.1, momentum=0.5)
        dense, kernel = (layer(weights.clone(), **options) for layer in (DenseHidden, KernelHidden))
        for _ in range(3):
            features = torch.randn(n_features, n, generator=generator)
            delta = torch.randn(n, n_units, generator=generator)
            padded = torch.nn.functional.pad(delta, (0, kernel.units - n_units))
            found, expected = kernel.forward(features)[:, :n_units], dense.forward(features)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
            found, expected = kernel.learn(features, padded), dense.learn(features, delta)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(kernel.weights()[:, :n_units], dense.weights(), rtol=1e-5, atol=1e-5)
        assert not kernel.weights()[:, n_units:].any()


@pytest.mark.parametrize("batch_size", [10, kernels.LARGEST_BATCH + 3], ids=["kernels", "products"])
@pytest.mark.parametrize("units", [64, 37])
def test_a_prepared_step_has_the_bits_of_a_new_one(batch_size, units):
    """After trainings with other weights, and one that diverged, whose numbers are all over its buffers."""
    prepared = Prepared()
    for seed, rate in enumerate([0.05, 0.05, 1e30, 1e30, 0.05]):
        params = architecture(7) | {"n_hidden_layer": units, "learning_rate": rate, "momentum": 0.6}

        def reused(weights, shape, *, seed=seed, params=params, **sgd):
            return prepared.step(params, shape, 10, seed=seed, device=CPU, **sgd)

        before, options = prepared._step, dict(seed=seed, n_steps=12, batch_size=batch_size)
        found, weights = run(params, make=reused, **options)
        assert (prepared._step is before) == (seed in (1, 3))  # a rate of its own has a step of its own
        expected, expected_weights = run(params, **options)
        assert np.isfinite(found).all() == (rate < 1)
        np.testing.assert_array_equal(found, expected)
        assert all(w.numpy().tobytes() == expected_weights[name].numpy().tobytes() for name, w in weights.items())
