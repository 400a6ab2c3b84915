"""What a training sets in its process is set back after each test."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _denormals_again() -> Iterator[None]:
    """Training sets the processor to flush them; other tests of the same process need them."""
    yield
    import torch

    torch.set_flush_denormal(False)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As a worker trains."""
    import torch

    from mnist_nn import training

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    training.prepare(torch.device("cpu"))
    yield
    torch.set_num_threads(before)
