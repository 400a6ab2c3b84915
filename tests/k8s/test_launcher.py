"""k8s/launcher.sh beside stand-ins for the cluster (api.py), mpirun and ssh, with the real program behind it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import PATIENCE, ROOT, journal_lines, wait_until
from tests.k8s.api import Api
from tests.k8s.manifests import overlay

SSH = """#!/bin/sh
[ "$1 $2 $3 $4 $6" = "-o ConnectTimeout=5 -o BatchMode=yes true" ] && [ -e "$FOLDER/up/${5%.svm.default.svc}" ]
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
# 20 trials of 0.1 s, see toys.py
SEARCH = "tests.toys 20 --seconds 0.1"


class Pod:
    """A launcher's pod."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = folder / "results"
        (folder / "bin").mkdir()
        for name, script in {"mpirun": MPIRUN, "ssh": SSH, "hostname": "#!/bin/sh\necho svm-launcher\n"}.items():
            (folder / "bin" / name).write_text(script)
            (folder / "bin" / name).chmod(0o755)
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
        path = f"{self.folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environ = {
            **os.environ, **self.api.environ, "PATH": path,
            "FOLDER": str(self.folder), "PYTHONPATH": str(ROOT), "RESULTS": str(self.results), "SEARCH": SEARCH,
            "OPTIONS": "--gpu none --workers 1", "PAUSE": "0.1", "WAIT": "20", **settings,
        }  # fmt: skip
        environ |= {"HOSTFILE": str(self.folder / "hostfile"), "ACCOUNT": str(self.api.account)}
        pipe = subprocess.PIPE
        command = [ROOT / "k8s" / "launcher.sh"]
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
    assert not pod.api.calls


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
def test_a_worker_that_is_failed_is_made_anew(pod: Pod) -> None:
    pod.api.fail("svm-worker-1")
    status, output = pod.run()
    assert status == 0 and "1 of 2 workers are ready" in output
    assert [call.split("?")[0] for call in pod.api.calls] == ["DELETE /api/v1/namespaces/default/pods"]
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
@pytest.mark.parametrize("deleted", [False, True], ids=["failed", "deleted"])
def test_attempts_that_lose_a_worker_do_not_count(pod: Pod, deleted: bool) -> None:
    """Were they counted, one would end the job here. A worker that was deleted is made again unasked."""
    process = attempt_that_is_lost(pod)
    if deleted:
        (pod.api.up / "svm-worker-0").unlink()
    else:
        pod.api.fail("svm-worker-0")
    (pod.folder / "fail").touch()
    assert wait_until(lambda: pod.api.calls)  # it waits for the worker
    (pod.api.up / "svm-worker-0").touch()
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and "workers lost: svm-worker-0" in output and pod.n_attempts == 2


@pytest.mark.slow
def test_what_is_there_computes_when_a_worker_does_not_come_back(pod: Pod) -> None:
    """No spot node is to be had: the others would cost money and do nothing."""
    pod.api.can_make = False
    pod.api.fail("svm-worker-1")
    status, output = pod.run(WAIT="1")
    assert status == 0 and "1 of 2 workers are ready" in output
    assert (pod.folder / "hostfile-1").read_text() == "svm-worker-0.svm.default.svc slots=1\n"


@pytest.mark.slow
def test_without_the_right_to_ask_it_says_so_and_starts(pod: Pod) -> None:
    pod.api.rules = []
    pod.api.fail("svm-worker-1")
    status, output = pod.run(WAIT="1")
    assert status == 0 and output.count("the cluster refuses DELETE") == 1 and "k8s/base/launcher.yaml" in output


@pytest.mark.slow
def test_told_to_go_while_it_waits_it_goes(pod: Pod) -> None:
    pod.api.can_make = False
    for worker in pod.workers:
        pod.api.fail(worker)
    process = pod.start()
    while not any(call.startswith("DELETE") for call in pod.api.calls):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 75 and pod.n_attempts == 0
