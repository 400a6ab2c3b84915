"""What a training sets in its process is set back after each test."""

from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from tests.mnist_nn.trainings import ONE_THREAD


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


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a data set of 300 training and 101 test images."""
    from tests.mnist_nn.scaled_digits import write_as_mnist

    folder = tmp_path_factory.mktemp("data")
    write_as_mnist(folder, 300, 101)
    return folder


@pytest.fixture(scope="module")
def one_thread_everywhere() -> Iterator[None]:
    """Here and in the processes that are started: cores are few and shared."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ONE_THREAD.items():
            patch.setenv(name, value)
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The results folder of a study that has kept its two networks, and what its report has printed."""
    from dataclasses import replace

    from tests.helpers import reported
    from tests.mnist_nn.small import TINY, computed

    folder, said = tmp_path_factory.mktemp("study"), StringIO()
    (folder / "figures").mkdir()
    (folder / "figures" / "unsure-04-test-9.svg").touch()  # of a run before, with another --plot
    with redirect_stdout(said):
        reported(replace(TINY, plot=3), computed(), TINY.data(), folder)
    return folder, said.getvalue()
