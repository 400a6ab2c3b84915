"""Training sets the processor to flush denormal numbers; other tests of the same process need them."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _denormals_again() -> Iterator[None]:
    yield
    import torch

    torch.set_flush_denormal(False)
