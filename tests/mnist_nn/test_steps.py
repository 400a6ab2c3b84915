"""Every training step against autograd, which is the definition."""

import time
from functools import cache

import numpy as np
import pytest
import torch

from mnist_nn import net, training
from mnist_nn.steps import choose, deferred, kernels
from mnist_nn.steps.autograd import AutogradStep
from mnist_nn.steps.choose import make_step
from mnist_nn.steps.hidden import DenseHidden, KernelHidden, KernelProducts, Products
from mnist_nn.steps.manual import ManualStep

pytestmark = pytest.mark.numerical

CPU = torch.device("cpu")
TOLERANCE = 5e-6  # Relative difference of a loss, of any step of 200.


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    training.prepare(CPU)
    yield
    torch.set_num_threads(before)


def architecture(seed, largest=(32, 200)):
    """A random network on 12 x 12 images, with a learning rate and momentum of the search's own ranges."""
    random = np.random.default_rng(seed)
    return {
        "n_conv_layer": int(random.integers(1, largest[0])),
        "kernel_size": int(random.integers(2, 11)),
        "n_hidden_layer": int(random.integers(1, largest[1])),
        "learning_rate": float(10 ** random.uniform(-5, -1)),
        "momentum": float(10 ** random.uniform(-2, 0)),
    }


def batches(seed, n_steps, batch_size, shape=(12, 12)):
    """Images of noise around one pattern per class, so that there is something to learn; the last batch is smaller."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(10, *shape, generator=generator)
    for step in range(n_steps):
        n = batch_size if step < n_steps - 1 else max(1, batch_size - 3)
        labels = torch.randint(10, (n,), generator=generator)
        yield patterns[labels] + torch.randn(n, *shape, generator=generator), labels


def run(step, params, *, seed=0, n_steps=200, batch_size=10, shape=(12, 12), make=make_step, dtype=torch.float32):
    """Mean loss of every step, and the weights at the end."""
    learn = make(
        step,
        net.initial_weights(params, shape, 10, seed=seed, device=CPU),
        shape,
        batch_size=batch_size,
        learning_rate=params["learning_rate"],
        momentum=params["momentum"],
    )
    losses = [float(learn(x.to(dtype), y)) / len(x) for x, y in batches(seed, n_steps, batch_size, shape)]
    return np.array(losses), learn.finish()


def deferred_products(weights, **sgd):
    return deferred.DeferredHidden(weights, Products, **sgd)


@cache
def reference(params, options):
    return run("autograd", dict(params), **dict(options))


def assert_equal_to_autograd(step, params, **options):
    expected, expected_weights = reference(tuple(params.items()), tuple(options.items()))
    found, weights = run(step, params, **options)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=1e-6)
    assert list(weights) == list(expected_weights)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected_weights[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("step", ["manual", "deferred"])
def test_losses_equal_autograds_over_200_steps(step):
    """Of 20 architectures one may differ by more: where rounding decides on which side of the ReLU's kink an
    activation falls, training takes another path, as it does for autograd itself in another order of sums.
    """
    differences = []
    for seed in range(20):
        params = architecture(seed)
        expected, _ = reference(tuple(params.items()), (("seed", seed),))
        losses, _ = run(step, params, seed=seed)
        differences.append(float(np.max(np.abs(losses - expected) / np.maximum(expected, 0.1))))
    assert sorted(differences)[-2] < TOLERANCE and max(differences) < 0.01


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("hidden", [DenseHidden, deferred_products], ids=["manual", "deferred"])
def test_in_double_precision_every_architecture_agrees(hidden, seed):
    """The algorithms by themselves: momentum^24 steps is all that deferring neglects, 6e-8."""

    def in_double(step, weights, shape, **sgd):
        weights = {name: weight.double() for name, weight in weights.items()}
        if step == "autograd":
            return AutogradStep(weights, learning_rate=sgd["learning_rate"], momentum=sgd["momentum"])
        return ManualStep(step, weights, shape, lambda weight: hidden(weight, **sgd), **sgd)

    params = architecture(seed)
    expected, found = (
        run(step, params, seed=seed, n_steps=100, make=in_double, dtype=torch.float64)[0]
        for step in ("autograd", "manual")
    )
    np.testing.assert_allclose(found, expected, rtol=1e-12 if hidden is DenseHidden else 5e-7, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("step", ["manual", "deferred"])
def test_losses_equal_autograds_for_wide_layers(step, seed):
    params = architecture(seed) | {"n_conv_layer": 90, "n_hidden_layer": 700 + seed, "kernel_size": 3}
    assert_equal_to_autograd(step, params, seed=seed, shape=(28, 28), n_steps=60)


@pytest.mark.parametrize("batch_size", [1, 3, 16, 17, 40])
@pytest.mark.parametrize("step", ["manual", "deferred"])
def test_any_batch_size(step, batch_size):
    """Up to 16 by the kernels, above by PyTorch's products."""
    assert_equal_to_autograd(step, architecture(4), batch_size=batch_size, n_steps=80)


@pytest.mark.parametrize("step", ["manual", "deferred"])
@pytest.mark.parametrize(
    "change",
    [
        {"kernel_size": 12},
        {"kernel_size": 1},
        {"n_hidden_layer": 1},
        {"n_conv_layer": 1, "kernel_size": 12, "n_hidden_layer": 1},
        {"n_hidden_layer": kernels.LANES},
        {"n_hidden_layer": kernels.TILE_UNITS + 1},
        {"momentum": 0.0},
        {"momentum": 0.99, "learning_rate": 1e-3},
    ],
    ids=str,
)
def test_edges(step, change):
    params = architecture(3) | {"learning_rate": 0.01, "momentum": 0.2} | change
    assert_equal_to_autograd(step, params, n_steps=80)


@pytest.mark.parametrize("step", ["autograd", "manual", "deferred"])
def test_the_same_bits_every_time(step):
    first, second = (run(step, architecture(1)) for _ in range(2))
    assert (first[0] == second[0]).all()
    assert all(torch.equal(first[1][name], second[1][name]) for name in first[1])


@pytest.mark.parametrize("step", ["manual", "deferred"])
@pytest.mark.parametrize("momentum", [0.05, 0.3, 0.6])
def test_whole_epochs_and_the_epoch_they_stop_at(step, momentum):
    """Deferred steps are folded many times here, and the base has taken up thousands of them."""
    x, y = (torch.cat(parts) for parts in zip(*batches(8, 100, 10), strict=True))
    params = architecture(0) | {"n_hidden_layer": 50, "learning_rate": 5e-3, "momentum": momentum}

    def trained(name):
        seed = np.random.SeedSequence(3)
        return training.train(params, x, y, n_classes=10, epochs=6, seed=seed, device=CPU, step=name)

    expected, found = trained("autograd"), trained(step)
    assert found.step == step and expected.epochs > 2
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-5)
    assert found.epochs == expected.epochs


@pytest.mark.parametrize("step", ["manual", "deferred"])
def test_diverging_is_seen(step):
    x, y = (torch.cat(parts) for parts in zip(*batches(8, 10, 10), strict=True))
    params = architecture(0) | {"learning_rate": 1e6, "momentum": 0.5}
    seed = np.random.SeedSequence(3)
    trained = training.train(params, x, y, n_classes=10, seed=seed, device=CPU, step=step)
    assert trained.diverged and trained.losses == (float("inf"),)


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


def test_a_step_is_folded_once_it_has_settled():
    for momentum in (0.0, 0.1, 0.5, 0.9):
        settled = deferred.steps_to_settle(momentum)
        assert momentum**settled <= 2**-24 and (settled == 1 or momentum ** (settled - 1) > 2**-24)
        assert (deferred.blocks_of(momentum) - 1) * deferred.BLOCK >= settled


@pytest.mark.parametrize(
    "machine, n_units, momentum",
    [
        (choose.KERNELS, 256, 0.1),
        (choose.KERNELS, 1000, 0.5),
        (choose.PRODUCTS, 128, 0.3),
        (choose.PRODUCTS, 1000, 0.8),
        (choose.PRODUCTS, 1600, 0.05),
    ],
    ids=["kernels", "kernels-wide", "products-narrow", "products-much-momentum", "products-wide"],
)
def test_the_chosen_step_is_about_as_fast_as_the_best(machine, n_units, momentum):
    """Paired, the best of several alternating runs of whole folding periods."""
    n_features, batch_size = 5000, 10
    options = dict(batch_size=batch_size, momentum=momentum)
    by_kernels = machine is choose.KERNELS
    products = KernelProducts if by_kernels else Products
    sgd = options | {"learning_rate": 1e-4}
    weights = torch.randn(n_features, n_units)
    layers = {
        "manual": (KernelHidden if by_kernels else DenseHidden)(weights.clone(), **sgd),
        "deferred": deferred.DeferredHidden(weights.clone(), products, **sgd),
    }
    features, delta = torch.randn(n_features, batch_size), torch.zeros(batch_size, layers["manual"].units)

    def seconds(layer, n_steps):
        start = time.process_time()
        for _ in range(n_steps):
            layer.forward(features)
            layer.learn(features, delta)
        return time.process_time() - start

    for layer in layers.values():  # Until the window is full.
        seconds(layer, deferred.steps_to_settle(momentum) + deferred.BLOCK)
    times = {step: [] for step in layers}
    for _ in range(4):
        for step, layer in layers.items():
            times[step].append(seconds(layer, deferred.BLOCK))
    chosen = choose.faster_step(n_features, n_units, machine=machine, **options)
    assert min(times[chosen]) <= 1.2 * min(min(values) for values in times.values()), times


def test_the_window_makes_much_momentum_and_narrow_layers_dear():
    def seconds(step, n_units, momentum):
        options = dict(batch_size=10, momentum=momentum, machine=choose.CUDA)
        return choose.expected_seconds(step, 288_000, n_units, **options)

    assert seconds("deferred", 1000, 0.1) < 0.7 * seconds("manual", 1000, 0.1)
    assert seconds("deferred", 1000, 0.99) > seconds("manual", 1000, 0.99)
    assert seconds("deferred", 30, 0.1) > seconds("manual", 30, 0.1)


def test_the_grouped_step_is_not_made_for_batches_from_outside():
    weights = net.initial_weights(architecture(0), (12, 12), 10, seed=1, device=CPU)
    with pytest.raises(ValueError, match="takes its batches from the device"):
        make_step("grouped", weights, (12, 12), batch_size=10, learning_rate=0.1, momentum=0.1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("step", ["auto", "manual", "deferred", "grouped"])
def test_on_cuda(step):
    x, y = (torch.cat(parts).cuda() for parts in zip(*batches(8, 100, 10), strict=True))
    params = architecture(0) | {"learning_rate": 5e-3, "momentum": 0.3}
    expected, found = (
        training.train(
            params,
            x,
            y,
            n_classes=10,
            epochs=3,
            tolerance=float("inf"),
            seed=np.random.SeedSequence(3),
            device=x.device,
            step=name,
        ).losses
        for name in ("autograd", step)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4)
