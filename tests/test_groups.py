"""Tests that share what takes long to make, such as a Slurm, are run by one process."""

import pytest


@pytest.mark.xdist_group("one process")
def test_groups_are_seen_by_xdist(request: pytest.FixtureRequest) -> None:
    """With pytest 9.2, pytest-xdist 3.8 silently gave the tests of a group to all processes."""
    if not hasattr(request.config, "workerinput"):
        pytest.skip("one process runs all tests: give -n")
    assert request.node.nodeid.endswith("@one process")


def test_a_file_is_a_group(request: pytest.FixtureRequest) -> None:
    """Which tests/conftest.py says before pytest-xdist looks."""
    assert request.node.nodeid.endswith("@tests/test_groups") or not hasattr(request.config, "workerinput")
