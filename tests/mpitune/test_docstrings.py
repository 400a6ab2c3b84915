"""The examples in docstrings of what users call."""

import doctest
import tempfile
from importlib import import_module
from pathlib import Path

import pytest

# The example of the searches of `mpitune.sklearn` is run by their own tests.
MODULES = (
    "mpitune.experiment",
    "mpitune.port",
    "mpitune.exchange.loading",
    "mpitune.optimize.search",
    "mpitune.optimize.spaces.parameters",
    "mpitune.sklearn.search.winner",
    "mpitune.svm.svc",
)


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = doctest.testmod(import_module(module), optionflags=doctest.ELLIPSIS)
    assert result.attempted and not result.failed
