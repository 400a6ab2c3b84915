"""The Triton kernels: on any machine interpreted, in a process of its own, and compiled; on a GPU compiled and run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


def check_products(device: str) -> None:
    """Each kernel against its formulas in double precision; a network whose rate is 0 is untouched."""
    from mnist_nn import selfcheck

    for shape in selfcheck.PRODUCTS:
        selfcheck.check_products(*shape, device=torch.device(device))


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
@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.slow), 90])
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
