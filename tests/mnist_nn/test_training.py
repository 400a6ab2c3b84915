"""The training loop: stopping rules, determinism, evaluation, degenerate data."""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from sklearn.datasets import load_digits  # noqa: E402

from mnist_nn import net, training  # noqa: E402
from mnist_nn.shapes import shapes_of, weights_of  # noqa: E402

CPU = torch.device("cpu")
PARAMS = {"n_conv_layer": 6, "kernel_size": 3, "n_hidden_layer": 24, "learning_rate": 0.03, "momentum": 0.3}


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    images = net.Images(torch.tensor(data.images.astype(np.uint8)), 16.0)
    return images, torch.tensor(data.target.astype(np.int64))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(images, labels, *, seed=1, params=PARAMS, **options):
    options = {"n_classes": 10, "epochs": 3} | options
    return training.train(params, images, labels, seed=np.random.SeedSequence(seed), device=CPU, **options)


def test_it_learns(digits):
    images, labels = digits
    trained = train(images[:1500], labels[:1500], epochs=4, tolerance=1.0)
    found = training.probabilities(trained.weights, images[1500:])
    assert found.shape == (297, 10) and found.dtype == torch.float32
    assert torch.allclose(found.sum(1), torch.ones(297), atol=1e-5)
    assert float((found.argmax(1) != labels[1500:]).float().mean()) < 0.15


def test_the_same_seed_gives_the_same_bits(digits):
    images, labels = digits[0][:200], digits[1][:200]
    seed = np.random.SeedSequence(5, spawn_key=(1, 2))
    runs = [training.train(PARAMS, images, labels, n_classes=10, seed=seed, device=CPU, epochs=2) for _ in range(2)]
    assert runs[0].losses == runs[1].losses
    assert all(torch.equal(runs[0].weights[name], runs[1].weights[name]) for name in runs[0].weights)
    assert train(images, labels, seed=6).losses != train(images, labels, seed=7).losses


def test_it_stops_after_the_first_epoch_that_does_not_improve_enough(digits):
    images, labels = digits[0][:300], digits[1][:300]
    losses = train(images, labels, epochs=20, tolerance=0.8).losses
    ratios = [after / before for before, after in itertools.pairwise(losses)]
    assert len(losses) < 20 and ratios[-1] > 0.8 and all(ratio <= 0.8 for ratio in ratios[:-1])
    assert train(images, labels, epochs=20, tolerance=0.0).epochs == 2
    assert train(images, labels, epochs=4, tolerance=math.inf).epochs == 4


def test_the_loss_of_an_epoch_is_the_mean_per_image_also_with_a_smaller_last_batch(digits):
    images, labels = digits[0][:23], digits[1][:23]
    still = PARAMS | {"learning_rate": 0.0}
    trained = train(images, labels, params=still, epochs=1)
    expected = training.cross_entropy(trained.weights, images, labels)
    assert trained.losses[0] == pytest.approx(expected, rel=1e-6)


def test_a_diverging_network_stops_at_once_with_an_infinite_loss(digits):
    images, labels = digits[0][:100], digits[1][:100]
    trained = train(images, labels, params=PARAMS | {"learning_rate": 1e6})
    assert trained.diverged and trained.losses == (math.inf,) and trained.epochs == 1
    assert training.cross_entropy(trained.weights, images, labels) == math.inf


@pytest.mark.parametrize("n, kernel", [(1, 3), (1, 8), (9, 8), (10, 1), (11, 8)])
def test_few_images_and_kernels_up_to_the_whole_image(digits, n, kernel):
    images, labels = digits
    trained = train(images[:n], labels[:n], params=PARAMS | {"kernel_size": kernel})
    assert not trained.diverged and all(math.isfinite(loss) for loss in trained.losses)


def test_float_images_are_taken_as_normalised(digits):
    images, labels = digits[0][:50], digits[1][:50]
    assert train(net.Images(images.normalised()), labels).losses == train(images, labels).losses


def test_what_cannot_be_trained_is_refused(digits):
    images, labels = digits
    with pytest.raises(ValueError, match="kernel_size 9 does not fit an image of 8 x 8"):
        train(images, labels, params=PARAMS | {"kernel_size": 9})
    with pytest.raises(ValueError, match="no image"):
        train(images[:0], labels[:0])


def test_normalised_pixels_have_the_published_constants():
    pixels = net.Images(torch.tensor([0, 255], dtype=torch.uint8)).normalised()
    assert pixels.tolist() == pytest.approx([-127.5 / 73.61, 127.5 / 73.61], rel=1e-4)


def test_evaluation_does_not_depend_on_its_batches(digits, monkeypatch):
    images, labels = digits
    trained = train(images[:100], labels[:100])
    whole = training.probabilities(trained.weights, images)
    monkeypatch.setattr(training, "evaluation_batch", lambda features: 7)
    assert torch.allclose(training.probabilities(trained.weights, images), whole, atol=1e-6)


def test_weights_are_counted_and_drawn_like_pytorch_draws_them():
    shapes = shapes_of({"n_conv_layer": 64, "kernel_size": 5, "n_hidden_layer": 256}, (28, 28), 10)
    torch.manual_seed(0)
    modules = [torch.nn.Conv2d(1, 64, 5), torch.nn.Linear(64 * 576, 256), torch.nn.Linear(256, 10)]
    expected = [tuple(weight.shape) for module in modules for weight in module.parameters()]
    assert list(shapes.values()) == expected
    params = {"n_conv_layer": 64, "kernel_size": 5, "n_hidden_layer": 256}
    assert weights_of(params, (28, 28), 10) == sum(math.prod(shape) for shape in expected)
    weights = net.initial_weights(params, (28, 28), 10, seed=1, device=CPU)
    for weight, peer in zip(weights.values(), [w for m in modules for w in m.parameters()], strict=True):
        assert float(weight.abs().max()) == pytest.approx(float(peer.detach().abs().max()), rel=0.3)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_estimate_of_memory_covers_what_is_used_and_not_much_more():
    """The peak of a process of its own, against what it holds after training a small network."""
    program = r"""
import re, numpy as np, torch
from mnist_nn import net, training
from mnist_nn.shapes import memory_bytes
def status(name):
    return 1024 * int(re.search(name + r":\s+(\d+) kB", open("/proc/self/status").read())[1])
torch.set_num_threads(1)
images, labels = net.Images(torch.zeros(1000, 28, 28, dtype=torch.uint8)), torch.zeros(1000, dtype=torch.int64)
def estimate(channels, units):
    params = dict(n_conv_layer=channels, kernel_size=4, n_hidden_layer=units, learning_rate=1e-3, momentum=0.1)
    seed, device = np.random.SeedSequence(1), torch.device("cpu")
    trained = training.train(
        params, images[:200], labels[:200], n_classes=10, seed=seed, device=device, epochs=1
    )
    training.probabilities(trained.weights, images)
    return memory_bytes(params, (28, 28), 10)
estimate(1, 10)
held = status("VmRSS")
print(estimate(100, 1000), status("VmHWM") - held)
"""
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    estimated, used = map(int, output.stdout.split())
    assert used <= estimated <= 1.6 * used
