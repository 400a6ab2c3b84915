#!/usr/bin/env python3
"""The launcher of an MPIJob: mpirun on all workers, again and again while that brings the study on.

Exit status: 0 when the study is complete, also if trials have failed, since they would fail again; 75 when it was told
to go (running trials may finish first); else 1 or 2, once TRIES attempts in a row have finished no trial. Another one
would not help, so the launcher also sets the backoffLimit of its own Kubernetes Job to 0: the MPI operator then
declares the MPIJob failed and removes the workers, and their nodes cost nothing any more.

A worker that is Failed, since its node was preempted or it was evicted, stays so for ever: the operator makes a worker
only where there is none. The launcher deletes it and waits for the new one, at most WAIT seconds, then goes on with the
others. An attempt that lost a worker does not count as one that failed. Without the right to ask the cluster
(base/launcher.yaml) all this is left out, and a failed launcher is followed by another one, up to backoffLimit.

Settings, as variables: SEARCH (program and its arguments), OPTIONS, RESULTS, TRIES, WAIT, PAUSE (seconds).
"""

import contextlib
import json
import os
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

HOSTFILE = Path("/etc/mpi/hostfile")
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
COMPLETE, STOPPED = (0, 3), 75
KEEPALIVE = [word for name in ("time", "intvl", "probes") for word in ("--prtemca", f"oob_tcp_keepalive_{name}", "2")]


def say(text: str) -> None:
    print(f"launcher: {text}", file=sys.stderr, flush=True)


class Cluster:
    """The pods of this namespace, as the launcher's service account may see them."""

    def __init__(self) -> None:
        self._forbidden = not (ACCOUNT / "token").exists()

    def pod(self, name: str) -> dict | None:
        """A pod; {} where the cluster does not answer, None where there is no such pod."""
        return self._ask("GET", f"/api/v1/namespaces/{self._namespace}/pods/{name}")

    def delete(self, pod: dict) -> None:
        """Delete this pod, and no other one that has its name by now."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        self._ask("DELETE", f"/api/v1/namespaces/{self._namespace}/pods/{name}", {"preconditions": {"uid": uid}})

    def end_job(self, name: str) -> None:
        """No further pod of this Job once the present one has failed."""
        self._ask("PATCH", f"/apis/batch/v1/namespaces/{self._namespace}/jobs/{name}", {"spec": {"backoffLimit": 0}})

    @property
    def _namespace(self) -> str:
        return "" if self._forbidden else (ACCOUNT / "namespace").read_text().strip()

    def _ask(self, method: str, path: str, body: dict | None = None) -> dict | None:
        if self._forbidden:
            return {}
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        request = urllib.request.Request(
            f"https://{host}:{port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}", "Content-Type": kind},
        )
        trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
        try:
            with urllib.request.urlopen(request, timeout=10, context=trust) as answer:
                found: dict = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            if error.code in (401, 403):
                say(f"the cluster refuses {method} {path} ({error.code}): apply the Role in k8s/base/launcher.yaml")
                self._forbidden = True
        except (OSError, ValueError) as error:
            say(f"the cluster does not answer: {error}")
        return {}


class Launcher:
    def __init__(self) -> None:
        self._cluster = Cluster()
        self._lines = HOSTFILE.read_text().splitlines()
        self._results = os.environ["RESULTS"]
        self._pause = float(os.environ.get("PAUSE", "30"))
        self._wait = float(os.environ.get("WAIT", "900"))
        self._tries = int(os.environ.get("TRIES", "3"))
        self._mpirun: subprocess.Popen | None = None
        self._told = False
        signal.signal(signal.SIGTERM, self._stop)

    def run(self) -> int:
        in_vain = 0
        while True:
            workers = self._ready_workers()
            before = self._n_finished()
            status = self._attempt(list(workers))
            # mpirun may end with 0 although a node was lost, so the journal has the last word.
            if status in COMPLETE and self._ask_status().returncode in COMPLETE:
                return 0
            if self._told:
                return STOPPED
            gained = self._n_finished() - before
            lost = [name for name, uid in workers.items() if uid and self._uid_if_ready(name) != uid]
            in_vain = 0 if gained > 0 else in_vain + (not lost)
            say(f"mpirun ended with {status}; {gained} trials finished; workers lost: {', '.join(lost) or 'none'}")
            if in_vain == self._tries:
                say(f"{in_vain} attempts in a row finished no trial, for the cause above: the job is ended for good")
                self._cluster.end_job(socket.gethostname())  # the operator gives the pod the name of its Job
                return status if status in (1, 2) else 1
            time.sleep(self._pause)

    def _ready_workers(self) -> dict[str, str]:
        """Name to uid of the workers to start on; an empty uid where the cluster cannot be asked."""
        names = [line.split(".")[0].split()[0] for line in self._lines]
        end = time.monotonic() + self._wait
        said = ""
        while True:
            found = {name: uid for name in names if (uid := self._uid_if_ready(name, renew=True)) is not None}
            if len(found) == len(names) or (found and time.monotonic() > end):
                return found
            if (text := f"{len(found)} of {len(names)} workers are ready") != said:
                say(said := text)
            time.sleep(min(self._pause, 5))

    def _uid_if_ready(self, name: str, renew: bool = False) -> str | None:
        """None for a worker that is not ready; one that is Failed is deleted if `renew` says so."""
        pod = self._cluster.pod(name)
        if pod is None:
            return None
        if not pod:
            return ""
        status = pod["status"]
        gone = "deletionTimestamp" in pod["metadata"]
        if renew and status.get("phase") == "Failed" and not gone:
            say(f"{name} is Failed ({status.get('reason', 'its container ended')}): deleted, to be made again")
            self._cluster.delete(pod)
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", []))
        uid: str = pod["metadata"]["uid"]
        return uid if ready and not gone else None

    def _attempt(self, workers: list[str]) -> int:
        """One mpirun on these workers. Returns its exit status."""
        with tempfile.NamedTemporaryFile("w", prefix="hostfile-") as hostfile:
            chosen = [line for line in self._lines if line.split(".")[0].split()[0] in workers]
            hostfile.write("".join(f"{line}\n" for line in chosen))
            hostfile.flush()
            command = ["mpirun", "--hostfile", hostfile.name, "--map-by", "ppr:1:node", "--bind-to", "none"]
            command += [*KEEPALIVE, "python", "-m", *shlex.split(os.environ["SEARCH"]), "--data", "/data"]
            command += ["--results", self._results, *shlex.split(os.environ.get("OPTIONS", ""))]
            if self._told:
                return STOPPED
            self._mpirun = subprocess.Popen([*command, "--expect-nodes", str(len(chosen))])
            if self._told:  # a signal in between
                self._mpirun.send_signal(signal.SIGUSR1)
            status = self._mpirun.wait()
            self._mpirun = None
        return status

    def _stop(self, *_: object) -> None:
        self._told = True
        if self._mpirun is None:
            os._exit(STOPPED)
        with contextlib.suppress(ProcessLookupError):
            self._mpirun.send_signal(signal.SIGUSR1)

    def _ask_status(self) -> "subprocess.CompletedProcess[str]":
        command = ["python", "-m", "mpitune", "status", self._results]
        return subprocess.run(command, capture_output=True, text=True)

    def _n_finished(self) -> int:
        lines = [line.split() for line in self._ask_status().stdout.splitlines()]
        return next((int(words[1]) for words in lines if words[:1] == ["trials"]), 0)


if __name__ == "__main__":
    sys.exit(Launcher().run())
