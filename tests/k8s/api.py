"""A Kubernetes API server that knows the workers of one MPIJob and its Job, and an operator that makes workers.

    with Api(folder, rules, ["svm-worker-0"]) as api:
        api.fail("svm-worker-0")

It judges what it is asked: the token, the rules of the Role (as RBAC would), the selectors of a deletion, the kind of a
patch and which fields of a Job may change. As the operator does (getOrCreateWorker of mpi-operator 0.6), a worker is
made only where there is none: one that is Failed stays until it is deleted. A worker that runs is a file in `up`.
"""

import json
import ssl
import subprocess
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

WORKERS = "training.kubeflow.org/job-name=svm,training.kubeflow.org/job-role=worker"
PODS, JOB = "/api/v1/namespaces/default/pods", "/apis/batch/v1/namespaces/default/jobs/svm-launcher"


class Serving:
    """Answers while it is a context."""

    _server: ThreadingHTTPServer

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Api(Serving):
    """folder: gets the certificate, `up` and `account`, the folder that a pod's service account is mounted to."""

    def __init__(self, folder: Path, rules: Sequence[dict[str, Any]], workers: Sequence[str]) -> None:
        self.account, self.up = folder / "account", folder / "up"
        self.account.mkdir()
        self.up.mkdir()
        for name in workers:
            (self.up / name).touch()
        key, certificate = folder / "api.key", self.account / "ca.crt"
        subject = ["-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.1"]
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject]
        subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        (self.account / "token").write_text("token-of-the-launcher")
        (self.account / "namespace").write_text("default")
        self.rules = rules
        self.calls: list[str] = []
        self.job = {"backoffLimit": 6}
        self.failed: set[str] = set()
        self.can_make = True  # whether the cluster has room for a new worker
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": self}))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        port = str(self._server.server_port)
        self.environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}

    def fail(self, name: str) -> None:
        """As the kubelet of a node that shuts down, or one that evicts."""
        self.failed.add(name)
        (self.up / name).unlink()

    def allows(self, verb: str, resource: str, name: str) -> bool:
        return any(
            resource in rule["resources"] and verb in rule["verbs"] and name in rule.get("resourceNames", [name])
            for rule in self.rules
        )

    def answer(self, method: str, path: str, headers: Any, body: Any) -> int:
        """The status of the answer."""
        self.calls.append(f"{method} {path}")
        place = urlsplit(path)
        asked = {name: values[0] for name, values in parse_qs(place.query).items()}
        if headers["Authorization"] != "Bearer token-of-the-launcher":
            return 401
        if (method, place.path) == ("DELETE", PODS):
            if not self.allows("deletecollection", "pods", ""):
                return 403
            if asked != {"fieldSelector": "status.phase=Failed", "labelSelector": WORKERS}:
                return 400  # it would delete pods of others
            made, self.failed = self.failed, set()
            for name in made if self.can_make else ():
                (self.up / name).touch()
            return 200
        if (method, place.path) != ("PATCH", JOB):
            return 404
        if not self.allows("patch", "jobs", "svm-launcher"):
            return 403
        if headers["Content-Type"] != "application/merge-patch+json":
            return 415
        if set(body) != {"spec"} or not set(body["spec"]) <= {"backoffLimit", "activeDeadlineSeconds", "suspend"}:
            return 422  # other fields of a Job cannot change
        self.job.update(body["spec"])
        return 200


class _Handler(BaseHTTPRequestHandler):
    api: Api

    def _do(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.send_response(self.api.answer(self.command, self.path, self.headers, body))
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_DELETE = do_PATCH = _do

    def log_message(self, *_: Any) -> None:
        pass
