"""A Kubernetes API server that knows pods and one Job, and an MPI operator that makes workers again.

    with Api(folder, rules, ["svm-worker-0"]) as api:
        api.fail("svm-worker-0", "Evicted")

It judges what it is asked: the token, the rules of the Role (as RBAC would), the uid in a deletion's preconditions, the
kind of a patch and which fields of a Job may change. As the operator does (getOrCreateWorker of mpi-operator 0.6), a
worker is made only where there is none: one that is Failed stays until it is deleted. Everything asked is in `calls`.
"""

import json
import re
import ssl
import subprocess
import threading
import uuid
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

Pod = dict[str, Any]


class Api:
    """folder: gets the certificate and `account`, the folder that a pod's service account is mounted to."""

    def __init__(self, folder: Path, rules: Sequence[dict[str, Any]], workers: Sequence[str]) -> None:
        self.account = folder / "account"
        self.account.mkdir()
        key, certificate = folder / "api.key", self.account / "ca.crt"
        subject = ["-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.1"]
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject]
        subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        (self.account / "token").write_text("token-of-the-launcher")
        (self.account / "namespace").write_text("default")
        self.rules = rules
        self.calls: list[str] = []
        self.job = {"backoffLimit": 6}
        self.pods = {name: self._made(name) for name in workers}
        self.can_make = True  # whether the cluster has room for a new worker
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.environ = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self._server.server_port),
        }

    def __enter__(self) -> "Api":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fail(self, name: str, reason: str) -> None:
        """As the kubelet of a node that shuts down, or one that evicts."""
        self.pods[name]["status"] = {"phase": "Failed", "reason": reason, "conditions": []}

    def sync(self) -> None:
        """One round of the operator."""
        for name, pod in list(self.pods.items()):
            if "deletionTimestamp" in pod["metadata"]:
                self.pods[name] = self._made(name)
                if not self.can_make:
                    self.pods[name]["status"] = {"phase": "Pending"}

    def _made(self, name: str) -> Pod:
        conditions = [{"type": "Ready", "status": "True"}]
        status = {"phase": "Running", "conditions": conditions}
        return {"metadata": {"name": name, "uid": str(uuid.uuid4())}, "status": status}

    def allows(self, verb: str, group: str, resource: str, name: str) -> bool:
        return any(
            group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]
            and name in rule.get("resourceNames", [name])
            for rule in self.rules
        )  # fmt: skip

    def answer(self, method: str, path: str, headers: Any, body: Any) -> tuple[int, Any]:
        self.calls.append(f"{method} {path}")
        if headers["Authorization"] != "Bearer token-of-the-launcher":
            return 401, {}
        match = re.fullmatch(r"/(?:api/v1|apis/(batch)/v1)/namespaces/default/(pods|jobs)/([a-z0-9-]+)", path)
        if match is None or (match[2] == "jobs") != (match[1] == "batch"):
            return 404, {}
        group, resource, name = match[1] or "", match[2], match[3]
        if not self.allows({"GET": "get", "DELETE": "delete", "PATCH": "patch"}[method], group, resource, name):
            return 403, {}
        if resource == "jobs":
            if headers["Content-Type"] != "application/merge-patch+json":
                return 415, {}
            if set(body) != {"spec"} or not set(body["spec"]) <= {"backoffLimit", "activeDeadlineSeconds", "suspend"}:
                return 422, {}  # other fields of a Job cannot change
            self.job.update(body["spec"])
            return 200, {}
        if name not in self.pods:
            return 404, {}
        pod = self.pods[name]
        if method == "DELETE":
            if body["preconditions"]["uid"] != pod["metadata"]["uid"]:
                return 409, {}
            pod["metadata"]["deletionTimestamp"] = "now"
        else:
            self.sync()
        return 200, self.pods[name]


class _Handler(BaseHTTPRequestHandler):
    api: Api

    def _do(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        status, answer = self.api.answer(self.command, self.path, self.headers, body)
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_DELETE = do_PATCH = _do

    def log_message(self, *_: Any) -> None:
        pass
