"""Networks trained together against autograd, one by one."""

import gc
import itertools
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mnist_nn import net, training  # noqa: E402
from mnist_nn.steps.grouped import filled  # noqa: E402
from mnist_nn.training import Member, train, train_together  # noqa: E402
from tests.mnist_nn.networks import TOLERANCE, alone, architecture, pictures, stepped  # noqa: E402

pytestmark = [pytest.mark.numerical, pytest.mark.usefixtures("one_thread")]

CPU = torch.device("cpu")
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICES = [CPU, pytest.param(torch.device("cuda"), marks=GPU)]


def uneven_orders(seed, n=200):
    """Of 4 networks: whole batches, a batch that is not full, one more batch of a single image, few images."""
    random = np.random.default_rng(seed)
    return [random.permutation(n)[:size] for size in (n - 10, n - 13, n - 9, 27)]


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 10))])
def test_in_double_precision_every_network_is_that_of_autograd(seed):
    """The algorithm by itself: filling is exact, and a network without an image in a batch stays as it is."""
    params, orders, (x, y) = architecture(seed), uneven_orders(seed), pictures(200)
    losses, weights = stepped(params, orders, x, y, dtype=torch.float64)
    for number, order in enumerate(orders):
        expected, expected_weights = alone(params, number, order, x, y, dtype=torch.float64)
        np.testing.assert_allclose(losses[: len(expected), number], expected, rtol=1e-11, atol=1e-12)
        assert not losses[len(expected) :, number].any()
        for name, weight in weights[number].items():
            torch.testing.assert_close(weight, expected_weights[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("batch_size", [3, 10, 40, 300])
@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_losses_of_every_step_equal_autograds(device, batch_size):
    """With what `test_steps` allows: of these networks one may come to the other side of a ReLU's kink."""
    differences = []
    for seed in range(4):
        params, orders, (x, y) = architecture(seed), uneven_orders(seed), pictures(200, device=device)
        losses, _ = stepped(params, orders, x, y, batch_size=batch_size)
        for number, order in enumerate(orders):
            expected, _ = alone(params, number, order, x, y, batch_size=batch_size)
            error = np.abs(losses[: len(expected), number] - expected)
            differences.append(float(np.max(error / np.maximum(expected, 0.1 * batch_size))))
    tolerance = TOLERANCE if device.type == "cpu" else 1e-4  # cuDNN may compute a convolution by Winograd's way
    assert sorted(differences)[-2] < tolerance and max(differences) < 0.01


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_replayed_graph_has_the_bits_of_the_step():
    params, orders, (x, y) = architecture(1), uneven_orders(1), pictures(200, device=torch.device("cuda"))
    (losses, weights), (again, same) = (stepped(params, orders, x, y, replayed=each) for each in (False, True))
    assert (losses == again).all()
    assert all(torch.equal(one[name], other[name]) for one, other in zip(weights, same, strict=True) for name in one)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_trainings_one_after_the_other_take_no_more_memory():
    """With a stream for each, cuBLAS would keep a workspace for each of the first 32."""
    params, orders, (x, y) = architecture(1), uneven_orders(1), pictures(200, device=torch.device("cuda"))
    reserved = []
    for _ in range(40):
        stepped(params, orders, x, y, replayed=True)
        gc.collect()
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
    assert max(reserved[2:]) == reserved[2], reserved


def test_a_group_of_one_is_the_network_by_itself():
    params, (x, y) = architecture(2), pictures(95)
    order = np.random.default_rng(0).permutation(95)
    (losses, _), (expected, _) = stepped(params, [order], x, y), alone(params, 0, order, x, y)
    np.testing.assert_allclose(losses[:, 0], expected, rtol=TOLERANCE)


FOLDS = [np.arange(200), np.arange(30, 251), np.arange(5, 204), np.arange(100, 140)]


def together(params, x, y, members, device=CPU, **options):
    return train_together(params, net.Images(x), y, members, n_classes=10, device=device, **({"epochs": 6} | options))


def members_of(folds=FOLDS):
    return [Member(fold, np.random.SeedSequence(number)) for number, fold in enumerate(folds)]


@pytest.mark.parametrize("seed", [0, 2, 3])
@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_whole_trainings_end_at_the_epochs_and_weights_of_autograd(seed, device):
    params, (x, y) = architecture(seed), pictures(260, device=device)
    found = together(params, x, y, members_of(), device)
    epochs = []
    for member, trained in zip(members_of(), found, strict=True):
        data = net.Images(x[member.images]), y[member.images]
        expected = train(params, *data, n_classes=10, seed=member.seed, device=device, epochs=6, step="autograd")
        epochs.append(expected.epochs)
        assert trained.epochs == expected.epochs and trained.step == "grouped" and not trained.diverged
        np.testing.assert_allclose(trained.losses, expected.losses, rtol=1e-5)
        for name, weight in trained.weights.items():
            torch.testing.assert_close(weight, expected.weights[name], rtol=1e-3, atol=1e-4)
    assert seed == 0 or len(set(epochs)) > 1  # One ends before the others, and its weights stay.


def same_bits(one, other):
    return one.losses == other.losses and all(
        torch.equal(one.weights[name], other.weights[name]) for name in one.weights
    )


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_the_bits_of_a_network_do_not_depend_on_who_is_trained_with_it(device):
    """Others may be missing, diverge or end sooner."""
    params, (x, y) = architecture(3), pictures(300, device=device)
    whole = together(params, x, y, members_of(), device)
    for number, member in enumerate(members_of()):
        places = [None] * len(whole)
        places[number] = member
        found = together(params, x, y, places, device)
        assert [each is None for each in found] == [each is None for each in places]
        assert same_bits(found[number], whole[number])
    wild = x.clone()
    wild[260:] *= 1e30
    members = members_of()
    members[1] = Member(np.arange(250, 300), np.random.SeedSequence(9))
    found = together(params, wild, y, members, device)
    assert found[1].diverged and found[1].losses == (math.inf,)
    assert all(same_bits(found[number], whole[number]) for number in (0, 2, 3))


@pytest.mark.parametrize("rate, momentum", [(1e6, 0.5), (1e-3, 1.6), (1e-3, 0.5)])
def test_divergence_is_recorded_as_by_one_network_alone(rate, momentum):
    """In the first epoch, in a later one, or never: losses end with infinity, and count as epochs begun."""
    params, (x, y) = architecture(0) | {"learning_rate": rate, "momentum": momentum}, pictures(260)
    outcomes = []
    for member, trained in zip(members_of(), together(params, x, y, members_of(), tolerance=math.inf), strict=True):
        options = dict(n_classes=10, seed=member.seed, device=CPU, epochs=6, tolerance=math.inf)
        expected = train(params, net.Images(x[member.images]), y[member.images], step="autograd", **options)
        outcomes.append((expected.diverged, expected.epochs))
        assert trained.diverged == expected.diverged == (trained.losses[-1] == math.inf)
        assert trained.epochs == expected.epochs
    first = outcomes[0]
    assert first == (True, 1) if rate > 1 else first[0] == (momentum > 1) and first[1] > 1


def test_what_cannot_be_trained_is_refused():
    x, y = pictures(20)
    for members in ([], [None], [Member(np.arange(0), np.random.SeedSequence(1))]):
        with pytest.raises(ValueError, match="no image to train on"):
            together(architecture(0), x, y, members)


@pytest.mark.parametrize("n, batch_size", list(itertools.product((1, 9, 10, 11, 20), (1, 10))))
def test_an_epoch_is_filled_up_with_images_of_its_last_batch_that_do_not_count(n, batch_size):
    images = np.arange(100, 100 + n)
    order, share = filled(images, batch_size, 30)
    assert order.shape == share.shape == (30,)
    assert (order[:n] == images).all() and (share[:n] > 0).all() and not share[n:].any()
    sums = share.reshape(-1, batch_size).sum(axis=1)
    np.testing.assert_allclose(sums, np.arange(len(sums)) < -(-n // batch_size))
    assert set(order[n:]) <= {images[(n - 1) // batch_size * batch_size]}


def test_uint8_images_are_normalised_as_by_the_other_steps():
    images = net.Images((torch.rand(60, 12, 12) * 16).to(torch.uint8), 16.0)
    options = dict(n_classes=10, seed=np.random.SeedSequence(1), device=CPU, epochs=2)
    labels = torch.arange(60) % 10
    expected, found = (
        training.train(architecture(1), images, labels, step=step, **options).losses for step in ("autograd", "grouped")
    )
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE)
