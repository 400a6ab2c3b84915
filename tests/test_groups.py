"""Tests that share what takes long to make, such as a Slurm, are run by one process."""

import pytest


@pytest.mark.xdist_group("one process")
def test_groups_are_seen_by_xdist(request: pytest.FixtureRequest) -> None:
    """With pytest 9.2, pytest-xdist 3.8 silently gave the tests of a group to all processes."""
    if not hasattr(request.config, "workerinput"):
        pytest.skip("one process runs all tests: give -n")
    assert request.node.nodeid.endswith("@one process")
