"""k8s/launcher.sh: what it does when mpirun ends, beside stand-ins for mpirun, ssh, curl and, but once, the program."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import PATIENCE, ROOT, journal_lines, wait_until

# In $FOLDER: `up` has a file for each worker that answers, attempt-N is what mpirun does the Nth time (default: all is
# done), `trials` how many are finished. A deletion of failed pods makes the workers anew, where `none` is not there.
STAND_INS = {
    "hostname": "echo svm-launcher",
    "ssh": """[ "$1 $2 $3 $4 $6" = "-o ConnectTimeout=5 -o BatchMode=yes true" ] &&
    [ -e "$FOLDER/up/${5%.svm.default.svc}" ]""",
    "curl": r"""echo "$*" >>"$FOLDER/calls"
case "$*" in *"--request DELETE"*) [ -e "$FOLDER/none" ] || (cd "$FOLDER/up"; touch svm-worker-0 svm-worker-1) ;; esac
cat "$FOLDER/code" 2>/dev/null || echo 200""",
    "mpirun": r"""echo "$*" >>"$FOLDER/attempts"; cp "$2" "$FOLDER/hostfile-used"
attempt="$FOLDER/attempt-$(wc -l <"$FOLDER/attempts")"
if [ -e "$attempt" ]; then . "$attempt"; else touch "$FOLDER/complete"; fi""",
    "python": r"""echo "trials $(cat "$FOLDER/trials" 2>/dev/null || echo 0) of 20"
[ -e "$FOLDER/complete" ] || exit 1""",
}  # fmt: skip


class Pod:
    """A launcher's pod."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("bin", "up", "account"):
            (folder / name).mkdir()
        for name, text in STAND_INS.items():
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / "bin" / name).chmod(0o755)
        for name, text in {"token": "secret", "namespace": "default"}.items():
            (folder / "account" / name).write_text(text)
        workers = ("svm-worker-0", "svm-worker-1")
        (folder / "hostfile").write_text("".join(f"{name}.svm.default.svc slots=1\n" for name in workers))
        for name in workers:
            (folder / "up" / name).touch()

    def start(self, **settings: str) -> "subprocess.Popen[str]":
        environ = {
            **os.environ, "PATH": f"{self.folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "FOLDER": str(self.folder), "PYTHONPATH": str(ROOT), "RESULTS": str(self.folder / "results"),
            "SEARCH": "mnist_svm 2", "PAUSE": "0.1", "WAIT": "20", "HOSTFILE": str(self.folder / "hostfile"),
            "ACCOUNT": str(self.folder / "account"), "KUBERNETES_SERVICE_HOST": "cluster", **settings,
        }  # fmt: skip
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([ROOT / "k8s" / "launcher.sh"], env=environ, cwd=ROOT, **options)

    def run(self, **settings: str) -> tuple[int, str]:
        process = self.start(**settings)
        output, _ = process.communicate(timeout=PATIENCE)
        return process.returncode, output

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def test_a_study_is_completed_by_the_program_itself(pod: Pod) -> None:
    (pod.folder / "bin" / "python").unlink()
    # mpirun is the program as one rank: toys have no data, and here is one node.
    (pod.folder / "attempt-1").write_text("shift 15; exec $(echo $* | sed 's/--data .data//; s/--expect-nodes .*//')")
    status, output = pod.run(SEARCH="tests.toys 20 --seconds 0", OPTIONS="--gpu none --workers 1")
    assert status == 0, output
    assert len(journal_lines(pod.folder / "results")) == 20 and not pod.lines("calls")


def test_mpirun_is_started_on_the_workers_that_answer(pod: Pod) -> None:
    status, output = pod.run(OPTIONS="--gpu all")
    keepalive = "--prtemca oob_tcp_keepalive"
    (said,) = pod.lines("attempts")
    assert status == 0 and said.split(" ", 2)[2] == (
        f"--map-by ppr:1:node --bind-to none {keepalive}_time 2 {keepalive}_intvl 2 {keepalive}_probes 2 python -m "
        f"mnist_svm 2 --data /data --results {pod.folder}/results --gpu all --expect-nodes 2"
    ), output
    assert pod.lines("hostfile-used") == pod.lines("hostfile") and not pod.lines("calls")


def test_a_mistake_in_the_command_ends_the_job_for_good(pod: Pod) -> None:
    """Three attempts, then the Job is allowed no further launcher; the operator then removes the workers."""
    for n in range(1, 9):
        # The third one finishes trials; so the first three in a row that were in vain are those after it.
        (pod.folder / f"attempt-{n}").write_text("exit 2" if n != 3 else 'echo 5 >"$FOLDER/trials"; exit 2')
    status, output = pod.run()
    assert status == 2 and "3 attempts in a row finished no trial" in output and len(pod.lines("attempts")) == 6
    (asked,) = pod.lines("calls")
    assert "--request PATCH https://cluster:443/apis/batch/v1/namespaces/default/jobs/svm-launcher" in asked
    assert '{"spec": {"backoffLimit": 0}}' in asked and "application/merge-patch+json" in asked
    assert "Authorization: Bearer secret" in asked


def test_a_worker_that_is_failed_is_made_anew(pod: Pod) -> None:
    """An attempt that loses a worker does not count: with one try the job would end here."""
    (pod.folder / "attempt-1").write_text('rm "$FOLDER/up/svm-worker-1"; exit 1')
    status, output = pod.run(TRIES="1")
    assert status == 0 and "workers lost: svm-worker-1" in output and "1 of 2 workers are ready" in output
    (asked,) = pod.lines("calls")
    assert (
        "--request DELETE https://cluster:443/api/v1/namespaces/default/pods?fieldSelector=status.phase%3DFailed&"
        in asked
    )
    assert "job-name%3Dsvm%2Ctraining.kubeflow.org%2Fjob-role%3Dworker" in asked  # no pods of others
    assert pod.lines("hostfile-used") == pod.lines("hostfile")


def test_what_is_there_computes_when_a_worker_does_not_come_back(pod: Pod) -> None:
    """No spot node is to be had, and this account may not ask; the other workers would cost money and do nothing."""
    (pod.folder / "none").touch()
    (pod.folder / "code").write_text("403")
    (pod.folder / "up" / "svm-worker-1").unlink()
    status, output = pod.run(WAIT="1")
    assert status == 0 and pod.lines("hostfile-used") == ["svm-worker-0.svm.default.svc slots=1"]
    assert output.count("the cluster refuses DELETE") == 1 and "k8s/base/launcher.yaml" in output


@pytest.mark.parametrize("while_waiting", [True, False])
def test_told_to_go_it_lets_running_trials_finish(while_waiting: bool, pod: Pod) -> None:
    if while_waiting:
        (pod.folder / "none").touch()
        for path in (pod.folder / "up").iterdir():
            path.unlink()
    trial = 'trap \'echo finished >"$FOLDER/told"; exit 75\' USR1; touch "$FOLDER/runs"; while sleep 0.05; do :; done'
    (pod.folder / "attempt-1").write_text(trial)
    process = pod.start()
    assert wait_until(lambda: (pod.folder / ("calls" if while_waiting else "runs")).exists())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 75 and pod.lines("told") == ([] if while_waiting else ["finished"])
