"""The MPI job acted out on namespace hosts, with the manifests' own commands; see pods.py."""

import copy
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpitune.storage.history import read_journal
from tests.cluster import hosts as namespaces
from tests.cluster import mpirun
from tests.cluster.conftest import need
from tests.cluster.hosts import Hosts
from tests.helpers import PATIENCE, journal_lines
from tests.k8s import pods
from tests.k8s.manifests import mpijobs
from tests.k8s.pods import ActedJob


@pytest.fixture
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """A host for the launcher and three for workers."""
    need(namespaces.missing(), mpirun.missing(), pods.missing())
    with Hosts(4, shared=tmp_path_factory.getbasetemp()) as hosts:
        yield hosts


@pytest.mark.slow
@pytest.mark.parametrize("search", ["svm", "nn"])
def test_a_search_finishes_on_three_pods(search: str, four: Hosts, tmp_path: Path) -> None:
    job = ActedJob(mpijobs("cpu")[search], four, tmp_path)
    job.start_workers()
    done = job.launch()
    assert done.returncode == 0, done.stdout
    results = tmp_path / "results" / search
    history = read_journal(results)
    assert history is not None and history.complete
    hosts = {result.place.host for result in history.results.values()}
    assert hosts == {f"{search}-worker-{index}" for index in range(3)}
    assert list((results / "figures").iterdir())
    assert results.stat().st_uid == 1000


@pytest.mark.slow
def test_what_ends_a_launcher_or_a_worker_does_not_end_the_search(four: Hosts, tmp_path: Path) -> None:
    """The first launcher is told to go, as by a queue; the second loses a worker pod, and goes on once it is back."""
    manifest = copy.deepcopy(mpijobs("cpu")["svm"])
    launcher_pod = manifest["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    settings = {"PAUSE": "1", "TRIES": "100"}
    launcher_pod["containers"][0]["env"] += [{"name": name, "value": value} for name, value in settings.items()]
    job = ActedJob(manifest, four, tmp_path)
    results = tmp_path / "results" / "svm"
    job.start_workers()
    launcher = running(job, results, 2)
    launcher.send_signal(signal.SIGTERM)
    output, _ = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 75 and "running trials may finish" in output

    n_known = len(journal_lines(results))
    launcher = running(job, results, n_known + 2)
    job.workers[2].kill()
    known = {line["key"] for line in journal_lines(results)}
    job.workers[2].start()
    job.start_workers()
    output, _ = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 0 and "launcher: mpirun ended with" in output, output
    lines = journal_lines(results)
    assert len({line["key"] for line in lines}) == len(lines) > len(known)
    assert known <= {line["key"] for line in lines}


def running(job: ActedJob, results: Path, n_lines: int) -> "subprocess.Popen[str]":
    """A launcher that has brought the journal to so many trials."""
    launcher = job.popen_launcher()
    end = time.monotonic() + PATIENCE
    while not (results / "journal.jsonl").exists() or len(journal_lines(results)) < n_lines:
        assert launcher.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    return launcher
