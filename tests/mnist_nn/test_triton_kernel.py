"""The Triton kernels: on any machine interpreted, in a process of its own, and compiled; on a GPU compiled and run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

# (networks, features, units, batch): multiples of the kernel's tile, one beyond, below; more than one block of images.
SHAPES = [(1, 32, 128, 10), (3, 33, 144, 10), (2, 300, 16, 1), (1, 5, 272, 20)]


def check_products(device: str) -> None:
    """Each kernel against its formulas in double precision; a network whose rate is 0 is untouched."""
    from mnist_nn.steps.triton_kernel import forward, learn, parts_of

    generator = torch.Generator().manual_seed(1)
    for n_networks, n_features, n_units, n_batch in SHAPES:

        def normal(*shape: int, n_networks: int = n_networks) -> torch.Tensor:
            return torch.randn(n_networks, *shape, generator=generator).to(device)

        weights, velocity, features = (
            normal(n_features, n_units),
            normal(n_features, n_units),
            normal(n_features, n_batch),
        )
        delta, derivatives = normal(n_batch, n_units), normal(n_features, n_batch)
        momentum, minus_rate = normal().abs(), -normal().abs()
        if n_networks > 1:
            momentum[1], minus_rate[1], delta[1] = 1, 0, 0
        w, v, x, d = (each.double() for each in (weights, velocity, features, delta))
        new_v = momentum.double()[:, None, None] * v + x @ d
        new_w = w + minus_rate.double()[:, None, None] * new_v
        kept = weights[1:2].clone(), velocity[1:2].clone()
        sums, out = (delta.new_full((*n, *delta.shape), torch.nan) for n in (parts_of(n_features, n_units)[:1], ()))
        torch.testing.assert_close(forward(weights, features, sums, out).double(), x.mT @ w, rtol=1e-5, atol=1e-4)
        learn(weights, velocity, features, delta, derivatives, momentum, minus_rate)
        for found, expected in ((derivatives, w @ d.mT), (velocity, new_v), (weights, new_w)):
            torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=3e-5)
        if n_networks > 1:
            assert torch.equal(weights[1:2], kept[0]) and torch.equal(velocity[1:2], kept[1])
            assert not derivatives[1].any()


def check_steps() -> None:
    """Whole steps of three networks with the kernel as their layer, against autograd."""
    import numpy as np

    from mnist_nn.steps import grouped, grouped_hidden
    from tests.mnist_nn.networks import alone, architecture, pictures, stepped

    grouped.make_hidden = grouped_hidden.FusedHidden
    params, (x, y) = architecture(3) | {"n_conv_layer": 4, "kernel_size": 9, "n_hidden_layer": 20}, pictures(40)
    orders = [np.arange(40), np.arange(3, 32), np.arange(31)]
    losses, weights = stepped(params, orders, x, y)
    for number, order in enumerate(orders):
        expected, expected_weights = alone(params, number, order, x, y)
        np.testing.assert_allclose(losses[: len(expected), number], expected, rtol=5e-6)
        for name, weight in weights[number].items():
            torch.testing.assert_close(weight, expected_weights[name], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_interpreted_kernel_is_the_formulas_it_stands_for() -> None:
    """Both checks in a process of their own, since the variable is read when the kernel is defined."""
    program = "from tests.mnist_nn.test_triton_kernel import *; check_products('cpu'); check_steps()"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


@pytest.mark.parametrize("name", ["_forward", "_learn"])
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernels_compile_for_gpus_and_multiply_without_tf32(
    name: str, capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To machine code, which needs no GPU. TF32 would be instructions of tensor cores."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from mnist_nn.steps import triton_kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel, options = getattr(triton_kernel, name), triton_kernel._options(10)
    sizes = {size: options.pop(size) for size in ("FEATURES", "UNITS", "BATCH")}
    kinds = {
        argument: "constexpr"
        if argument in sizes
        else "i32"
        if argument[:2] == "n_" or argument == "chunk"
        else "*fp32"
        for argument in kernel.arg_names
    }
    compiled = triton.compile(
        ASTSource(kernel, kinds, sizes), target=GPUTarget("cuda", capability, 32), options=options
    )
    assert compiled.asm["cubin"] and "fma.rn.f32" in compiled.asm["ptx"]
    assert "tf32" not in compiled.asm["ptx"] and "mma" not in compiled.asm["ptx"]


def test_long_sums_are_divided_and_short_ones_not_too_much() -> None:
    from mnist_nn.steps.triton_kernel import parts_of

    assert parts_of(100, 16) == (1, 128) and parts_of(3528, 80) == (28, 128)
    assert parts_of(288_000, 1008) == (141, 2048)
    for n_features, n_units in ((1, 16), (128, 16), (129, 2000), (36_864, 256), (575_424, 2000)):
        n_parts, chunk = parts_of(n_features, n_units)
        assert (n_parts - 1) * chunk < n_features <= n_parts * chunk and chunk % 32 == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_compiled_kernel_is_the_formulas_it_stands_for() -> None:
    check_products("cuda")
