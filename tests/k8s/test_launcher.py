"""k8s/launcher.py beside a stand-in for the cluster (api.py) and one for mpirun, with the real program behind it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import PATIENCE, ROOT, family, journal_lines
from tests.k8s.api import Api
from tests.k8s.manifests import overlay

# Started with what a test sets in place of the paths in a pod.
START = """
import sys
sys.path.insert(0, "{k8s}")
import launcher
launcher.HOSTFILE, launcher.ACCOUNT = launcher.Path("{hostfile}"), launcher.Path("{account}")
launcher.socket.gethostname = lambda: "svm-launcher"
sys.exit(launcher.Launcher().run())
"""
# Judges its command line, then does what attempt N is told to do in the file attempt-N: a shell command, or by default
# the program itself as one rank. It stands for mpirun on one worker of the hostfile.
MPIRUN = r"""#!/bin/bash
n=$(($(cat "$FOLDER/n" 2>/dev/null || echo 0) + 1)); echo $n > "$FOLDER/n"
[ "$1 $3 $4 $5 $6" = "--hostfile --map-by ppr:1:node --bind-to none" ] && cp "$2" "$FOLDER/hostfile-$n" || exit 99
keepalive="--prtemca oob_tcp_keepalive"
[ "${*:7:9}" = "${keepalive}_time 2 ${keepalive}_intvl 2 ${keepalive}_probes 2" ] && [ "${16}" = python ] || exit 96
while [ "$1" != python ]; do shift; done
[ "${*: -2:1}" = --expect-nodes ] && [ "${!#}" = "$(wc -l < "$FOLDER/hostfile-$n")" ] || exit 98
set -- "${@:1:$#-2}"
words="$*"
[[ $words == *" --data /data "* ]] && set -- ${words/ --data \/data / } || exit 97  # toys have no data
if [ -e "$FOLDER/attempt-$n" ]; then . "$FOLDER/attempt-$n"; else exec "$@"; fi
"""
# Runs the program until the journal holds so many trials, then ends as mpirun does when it loses a rank.
UNTIL = """\
"$@" & program=$!
until [ "$(grep -c '"key"' "$RESULTS/journal.jsonl" 2>/dev/null)" -ge {n} ]; do sleep 0.01; done
kill -9 $program; wait $program; exit 137
"""
NODE_SHUTDOWN = ("Terminated", "NodeShutdown")  # by the kubelet of 1.24 and later, and of earlier ones
# 20 trials of 0.1 s, see toys.py
SEARCH = "tests.toys 20 --seconds 0.1"


class Pod:
    """A launcher's pod."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = folder / "results"
        (folder / "bin").mkdir()
        (folder / "bin" / "mpirun").write_text(MPIRUN)
        (folder / "bin" / "mpirun").chmod(0o755)
        self.workers = [f"svm-worker-{index}" for index in range(2)]
        (folder / "hostfile").write_text("".join(f"{name}.svm.default.svc slots=1\n" for name in self.workers))
        rules = next(one for one in overlay("svm") if one["kind"] == "Role")["rules"]
        self.api = Api(folder, rules, self.workers)

    def attempt(self, n: int, does: str) -> None:
        (self.folder / f"attempt-{n}").write_text(does)

    @property
    def n_attempts(self) -> int:
        path = self.folder / "n"
        return int(path.read_text()) if path.exists() else 0

    def start(self, **settings: str) -> "subprocess.Popen[str]":
        account = self.api.account
        code = START.format(k8s=ROOT / "k8s", hostfile=self.folder / "hostfile", account=account)
        path = f"{self.folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environ = {
            **os.environ, **self.api.environ, "PATH": path,
            "FOLDER": str(self.folder), "PYTHONPATH": str(ROOT), "RESULTS": str(self.results), "SEARCH": SEARCH,
            "OPTIONS": "--gpu none --workers 1", "PAUSE": "0.1", "WAIT": "20", **settings,
        }  # fmt: skip
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", code]
        return subprocess.Popen(command, env=environ, cwd=ROOT, stdout=pipe, stderr=subprocess.STDOUT, text=True)

    def run(self, **settings: str) -> tuple[int, str]:
        process = self.start(**settings)
        output, _ = process.communicate(timeout=PATIENCE)
        return process.returncode, output


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    made = Pod(tmp_path)
    with made.api:
        yield made


def test_a_study_is_completed(pod: Pod) -> None:
    status, output = pod.run()
    assert status == 0, output
    assert len(journal_lines(pod.results)) == 20 and pod.n_attempts == 1
    assert not [call for call in pod.api.calls if not call.startswith("GET ")]


@pytest.mark.slow
@pytest.mark.parametrize("search", ["tests.toys -5", "tests.no_such_program"])
def test_a_mistake_in_the_command_ends_the_job_for_good(search: str, pod: Pod) -> None:
    """Three attempts, then the Job is allowed no further launcher; the operator then removes the workers."""
    status, output = pod.run(SEARCH=search)
    assert status in (1, 2) and pod.n_attempts == 3
    assert "3 attempts in a row finished no trial" in output and "ended for good" in output
    assert pod.api.job["backoffLimit"] == 0


@pytest.mark.slow
def test_a_launcher_that_brings_the_study_on_is_never_given_up(pod: Pod) -> None:
    """Attempts 3 and 6 finish some trials; so no three in a row were in vain."""
    for n in (1, 2, 4, 5, 7, 8):
        pod.attempt(n, "exit 1")
    pod.attempt(3, UNTIL.format(n=3))
    pod.attempt(6, UNTIL.format(n=8))
    status, output = pod.run()
    assert status == 0, output
    assert pod.n_attempts == 9 and pod.api.job["backoffLimit"] == 6
    keys = [line["key"] for line in journal_lines(pod.results)]
    assert len(keys) == len(set(keys)) == 20


@pytest.mark.slow
@pytest.mark.parametrize("reason", [*NODE_SHUTDOWN, "Evicted"])
def test_a_worker_that_is_failed_is_made_anew(reason: str, pod: Pod) -> None:
    before = pod.api.pods["svm-worker-1"]["metadata"]["uid"]
    pod.api.fail("svm-worker-1", reason)
    status, output = pod.run()
    assert status == 0 and f"svm-worker-1 is Failed ({reason})" in output
    deleted = [call for call in pod.api.calls if call.startswith("DELETE")]
    assert deleted == ["DELETE /api/v1/namespaces/default/pods/svm-worker-1"]
    assert pod.api.pods["svm-worker-1"]["metadata"]["uid"] != before
    assert len((pod.folder / "hostfile-1").read_text().splitlines()) == 2


def attempt_that_is_lost(pod: Pod) -> "subprocess.Popen[str]":
    """A launcher with one try, whose first attempt runs and fails once there is a file `fail`."""
    pod.attempt(1, 'touch "$FOLDER/lost"; until [ -e "$FOLDER/fail" ]; do sleep 0.01; done; exit 1')
    process = pod.start(TRIES="1")
    while not (pod.folder / "lost").exists():
        assert process.poll() is None
        time.sleep(0.01)
    return process


@pytest.mark.slow
def test_attempts_that_lose_a_worker_do_not_count(pod: Pod) -> None:
    """Were they counted, one would end the job here."""
    process = attempt_that_is_lost(pod)
    pod.api.fail("svm-worker-0", "Terminated")
    (pod.folder / "fail").touch()
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and "workers lost: svm-worker-0" in output and pod.n_attempts == 2


@pytest.mark.slow
def test_a_worker_that_was_deleted_is_waited_for(pod: Pod) -> None:
    """As by `kubectl delete pod`: the operator makes it again by itself. It costs the attempt that lost it."""
    process = attempt_that_is_lost(pod)
    pod.api.pods["svm-worker-0"]["metadata"]["deletionTimestamp"] = "now"
    (pod.folder / "fail").touch()
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and "workers lost: svm-worker-0" in output and pod.n_attempts == 2
    assert not [call for call in pod.api.calls if call.startswith("DELETE")]


@pytest.mark.slow
def test_a_launcher_that_was_killed_is_followed_by_one_that_goes_on(pod: Pod) -> None:
    """Its Job starts another; with the container all its processes are gone. It costs the trials that ran."""
    first = pod.start()
    while not (pod.results / "journal.jsonl").exists() or len(journal_lines(pod.results)) < 3:
        assert first.poll() is None
        time.sleep(0.01)
    for pid in family(first.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    first.communicate()
    known = {line["key"] for line in journal_lines(pod.results)}
    status, output = pod.run()
    assert status == 0, output
    keys = [line["key"] for line in journal_lines(pod.results)]
    assert len(keys) == len(set(keys)) == 20 and known <= set(keys) and pod.api.job["backoffLimit"] == 6


@pytest.mark.slow
def test_what_is_there_computes_when_a_worker_does_not_come_back(pod: Pod) -> None:
    """No spot node is to be had: the others would cost money and do nothing."""
    pod.api.can_make = False
    pod.api.fail("svm-worker-1", "Terminated")
    status, output = pod.run(WAIT="0.5")
    assert status == 0 and "1 of 2 workers are ready" in output
    assert (pod.folder / "hostfile-1").read_text() == "svm-worker-0.svm.default.svc slots=1\n"


@pytest.mark.slow
def test_without_the_right_to_ask_it_says_so_and_starts(pod: Pod) -> None:
    pod.api.rules = []
    status, output = pod.run()
    assert status == 0 and "the cluster refuses GET" in output and "k8s/base/launcher.yaml" in output
    assert output.count("refuses") == 1


@pytest.mark.slow
def test_told_to_go_while_it_waits_it_goes(pod: Pod) -> None:
    pod.api.can_make = False
    for worker in pod.workers:
        pod.api.fail(worker, "Terminated")
    process = pod.start()
    while not any(call.startswith("DELETE") for call in pod.api.calls):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 75 and pod.n_attempts == 0
