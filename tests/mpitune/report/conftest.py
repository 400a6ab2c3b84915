"""A report that takes long to make."""

import pytest

from mpitune.report.page import Report, page
from tests.mpitune.report.journals import many, read


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of 100,000 trials; tests that ask for it are of one xdist_group."""
    return page([Report(read(many(100_000, tmp_path_factory.mktemp("large") / "r")))])
