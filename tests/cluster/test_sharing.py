"""Candidates that share fits, on three hosts: the same scores, byte for byte, as in one process."""

import subprocess
import sys
from pathlib import Path

from benchmarks.sharing_layouts import digests_in
from tests.helpers import journal_lines

from .hosts import REPOSITORY, Hosts, environment
from .mpirun import mpirun


def test_three_hosts_find_the_scores_of_one(hosts: Hosts, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.sharing_layouts", "--small", "--one", "three-steps", "1"]
    alone = subprocess.run(
        [*command, tmp_path / "alone"], cwd=REPOSITORY, env=environment(), check=True, capture_output=True, text=True
    )
    (digest,) = digests_in(alone.stdout)
    assert digests_in(hosts[0].run(*mpirun(hosts, *command, tmp_path / "hosts")).stdout) == [digest] * 3
    places = {line["place"][0] for line in journal_lines(tmp_path / "hosts")}
    assert places == {"node0", "node1", "node2"}
