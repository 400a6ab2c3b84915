"""A small Kubernetes API server for the real kubectl, with controllers that act out a cluster and its operators.

    with Server(folder, {"SEARCH": "mnist_nn 1 1"}) as server:
        subprocess.run(["kubectl", "get", "pods"], env={**os.environ, "KUBECONFIG": server.kubeconfig})

It knows kinds (those of operators once their definitions are applied), namespaces, label and field selectors, patches,
dry runs, watches, logs, and exec by web socket, so that `kubectl cp` works. Objects of Kubernetes' own kinds must be
valid. Claims are bound where their storage class exists; one that a pod uses stays until the pod has gone. A pod runs
where its claims are bound and a node has the labels of its selector. Kueue admits jobs whose local queue is in their
namespace. A job's containers run here by their own commands, with folders of the same name in place of the volumes; one
whose command is `sleep` or sshd runs until it is deleted, and one of a TrainJob or PyTorchJob until somebody has read a
log of the job. These are judged by a webhook which at first does not answer.
"""

import base64
import contextlib
import copy
import hashlib
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.helpers import ROOT
from tests.k8s.api import Serving
from tests.k8s.manifests import environment, load, pod_specs, yaml

Manifest = dict[str, Any]
NONE: Mapping[str, Any] = MappingProxyType({})
# group/version: (plural, kind, whether it is in a namespace, short names)
KINDS: dict[str, list[tuple[str, str, bool, list[str]]]] = {
    "v1": [
        ("namespaces", "Namespace", False, ["ns"]),
        ("nodes", "Node", False, ["no"]),
        ("pods", "Pod", True, ["po"]),
        ("services", "Service", True, ["svc"]),
        ("persistentvolumeclaims", "PersistentVolumeClaim", True, ["pvc"]),
        ("persistentvolumes", "PersistentVolume", False, ["pv"]),
        ("serviceaccounts", "ServiceAccount", True, ["sa"]),
    ],
    "apps/v1": [("deployments", "Deployment", True, ["deploy"])],
    "batch/v1": [("jobs", "Job", True, [])],
    "rbac.authorization.k8s.io/v1": [("roles", "Role", True, []), ("rolebindings", "RoleBinding", True, [])],
    "storage.k8s.io/v1": [("storageclasses", "StorageClass", False, ["sc"])],
    "apiextensions.k8s.io/v1": [("customresourcedefinitions", "CustomResourceDefinition", False, ["crd", "crds"])],
}
VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
KUBERNETES = "1.32"
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of RFC 6455
PLAIN = "text/plain"


class Refused(Exception):
    """An answer that is no success: its status, reason and message."""


class Server(Serving):
    """A cluster of one user.

    Args:
        folder: gets the kubeconfig, and a folder for each claim.
        settings: variables of all containers.
        commands: what runs in place of a container's own command, by the container's name.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] = NONE,
        commands: Mapping[str, list[str]] = NONE,
    ) -> None:
        self.folder, self.settings, self.commands = folder, settings, commands
        self.read: set[str] = set()  # jobs whose log somebody has read
        self.kinds = copy.deepcopy(KINDS)
        self.objects: dict[tuple[str, str, str], Manifest] = {}  # by plural, namespace and name
        self.events: list[tuple[int, str, str, Manifest]] = []  # version, plural, type, object
        self.logs: dict[tuple[str, str], str] = {}
        self.refusals = 2  # of the webhook
        self.lock = threading.RLock()
        self.put("namespaces", {"metadata": {"name": "default"}, "status": {"phase": "Active"}})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"server_of": self}))
        self.kubeconfig = str(folder / "kubeconfig")
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "users": [{"name": "me", "user": {}}],
        }  # fmt: skip
        Path(self.kubeconfig).write_text(json.dumps(config))

    # -- objects

    def kind_of(self, plural: str) -> tuple[str, str, bool]:
        for version, kinds in self.kinds.items():
            for name, kind, in_namespace, _ in kinds:
                if name == plural:
                    return version, kind, in_namespace
        raise Refused(404, "NotFound", "the server could not find the requested resource")

    def put(self, plural: str, new: Manifest) -> Manifest:
        """Store an object, tell who watches, and let the controllers look at it."""
        version, kind, in_namespace = self.kind_of(plural)
        meta = new["metadata"]
        key = (plural, meta.setdefault("namespace", "default") if in_namespace else "", meta["name"])
        event = "MODIFIED" if key in self.objects else "ADDED"
        number = len(self.events) + 1
        meta.update(resourceVersion=str(number), uid=meta.get("uid", f"uid-{number}"))
        meta.setdefault("creationTimestamp", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        made = {**new, "apiVersion": version, "kind": kind}
        self.objects[key] = made
        self.events.append((number, plural, event, copy.deepcopy(made)))
        return made

    def remove(self, plural: str, namespace: str, name: str) -> None:
        made = self.objects.pop((plural, namespace, name))
        volume = made["spec"].get("volumeName", "") if plural == "persistentvolumeclaims" else ""
        if "csi" in self.objects.get(("persistentvolumes", "", volume), {"spec": {}})["spec"]:
            self.remove("persistentvolumes", "", volume)  # and its disk
        self.events.append((len(self.events) + 1, plural, "DELETED", made))

    def listed(self, plural: str, namespace: str, asked: Mapping[str, str]) -> list[Manifest]:
        return [
            one
            for (a, b, _), one in sorted(self.objects.items(), key=lambda item: item[0])
            if a == plural and namespace in ("", b) and selected(one, asked)
        ]

    def of(self, plural: str) -> list[Manifest]:
        return self.listed(plural, "", {})

    # -- requests

    def create(self, plural: str, namespace: str, new: Manifest, dry: bool) -> Manifest:
        version, kind, in_namespace = self.kind_of(plural)
        if (new.get("apiVersion"), new.get("kind")) != (version, kind):
            raise Refused(400, "BadRequest", f"{new.get('apiVersion')} {new.get('kind')} is no {kind} of {version}")
        if in_namespace:
            if ("namespaces", "", namespace) not in self.objects:
                raise Refused(404, "NotFound", f'namespaces "{namespace}" not found')
            new["metadata"]["namespace"] = namespace
        judge(new)
        if kind in ("TrainJob", "PyTorchJob") and self.refusals:
            self.refusals -= 1
            webhook = f"validator.{kind.lower()}"
            raise Refused(500, "InternalError", f'Internal error occurred: failed calling webhook "{webhook}"')
        if (plural, namespace if in_namespace else "", new["metadata"]["name"]) in self.objects:
            raise Refused(409, "AlreadyExists", f'{plural} "{new["metadata"]["name"]}" already exists')
        return new if dry else self.put(plural, new)

    def patch(self, plural: str, key: tuple[str, str, str], kind: str, body: bytes, dry: bool) -> Manifest:
        if kind.startswith("application/apply-patch"):
            (new,) = load(body.decode())
            if key not in self.objects:
                return self.create(plural, key[1], new, dry)
        else:
            new = json.loads(body)
        there = self.found(key)
        merged = merge(there, new)
        if plural == "persistentvolumes" and merged["spec"].get("nfs") != there["spec"].get("nfs"):
            raise Refused(422, "Invalid", "spec.persistentvolumesource is immutable after creation")
        return merged if dry else self.put(plural, merged)

    def delete(self, key: tuple[str, str, str]) -> Manifest:
        there = self.found(key)
        plural, namespace, name = key
        if plural == "namespaces":
            for other in [other for other in self.objects if other[1] == name]:
                self.remove(*other)
        if plural == "persistentvolumeclaims" and any(
            name in claims(pod["spec"]) for pod in self.listed("pods", namespace, {})
        ):
            there["metadata"]["deletionTimestamp"] = there["metadata"]["creationTimestamp"]
            return self.put(plural, there)
        self.remove(*key)
        for other in [other for other, one in self.objects.items() if one["metadata"].get("owner") == key[2]]:
            self.delete(other)
        return there

    def found(self, key: tuple[str, str, str]) -> Manifest:
        if key not in self.objects:
            raise Refused(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        return copy.deepcopy(self.objects[key])

    # -- controllers

    def act(self) -> None:
        """One step of all controllers."""
        for one in self.of("customresourcedefinitions"):
            spec = one["spec"]
            version = f"{spec['group']}/{next(v['name'] for v in spec['versions'] if v['served'])}"
            names = spec["names"]
            entry = (names["plural"], names["kind"], spec["scope"] == "Namespaced", names.get("shortNames", []))
            if entry not in self.kinds.setdefault(version, []):
                self.kinds[version].append(entry)
        for claim in self.of("persistentvolumeclaims"):
            self._claim(claim)
        for deployment in self.of("deployments"):
            n = deployment["spec"].get("replicas", 1)
            ready = {"replicas": n, "updatedReplicas": n, "readyReplicas": n, "availableReplicas": n}
            self._status(deployment, "deployments", ready)
        for job in self.of("jobs"):
            self._job(job)
        for plural in ("pytorchjobs", "mpijobs"):
            for job in self.of(plural):
                self._replicas(plural, job)
        for job in self.of("trainjobs"):
            self._trainjob(job)
        for pod in self.of("pods"):
            self._pod(pod)

    def _status(self, one: Manifest, plural: str, status: Manifest) -> None:
        if {**one.get("status", {}), **status} != one.get("status"):
            self.put(plural, {**one, "status": {**one.get("status", {}), **status}})

    def _claim(self, claim: Manifest) -> None:
        namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        used = any(name in claims(pod["spec"]) for pod in self.listed("pods", namespace, {}))
        if "deletionTimestamp" in claim["metadata"] and not used:
            self.remove("persistentvolumeclaims", namespace, name)
            return
        wanted = claim["spec"].get("storageClassName")
        if wanted is None or any(wanted == one["metadata"]["name"] for one in self.of("storageclasses")):
            (self.folder / name).mkdir(exist_ok=True)
            self._status(claim, "persistentvolumeclaims", {"phase": "Bound"})

    def _job(self, job: Manifest) -> None:
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        spec = job["spec"]
        if spec.get("suspend"):
            # Its pods go, also those that ran before somebody suspended it again.
            for pod in self.listed("pods", namespace, {"labelSelector": f"job-name={name}"}):
                self.remove("pods", namespace, pod["metadata"]["name"])
            queue = job["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name")
            if ("localqueues", namespace, queue) in self.objects:
                admitted = {key: value for key, value in job.items() if key != "status"}
                self.put("jobs", {**admitted, "spec": {**spec, "suspend": False}})
            return
        n = spec.get("completions", 1)
        labels = {"job-name": name, "batch.kubernetes.io/job-name": name}
        pods = self.listed("pods", namespace, {"labelSelector": f"job-name={name}"})
        if not pods and "status" not in job:
            self.put("jobs", {**job, "spec": {**spec, "selector": {"matchLabels": labels}}, "status": {"active": n}})
            for index in range(n):
                middle = f"-{index}" if spec.get("completionMode") == "Indexed" else ""
                given = {**labels, "batch.kubernetes.io/job-completion-index": str(index)}
                self._make_pod(f"{name}{middle}-{len(self.events)}x", namespace, spec["template"], given, name)
            return
        phases = [pod["status"].get("phase") for pod in pods]
        status: Manifest = {"ready": phases.count("Running"), "succeeded": phases.count("Succeeded")}
        (rule,) = spec.get("successPolicy", {}).get("rules", [{}])
        if phases and phases.count("Succeeded") >= rule.get("succeededCount", n):
            status["conditions"] = [{"type": "Complete", "status": "True"}]
        self._status(job, "jobs", status)

    def _replicas(self, plural: str, job: Manifest) -> None:
        """Both operators of Kubeflow, as far as their pods and conditions go."""
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        replicas = job["spec"].get("pytorchReplicaSpecs") or job["spec"]["mpiReplicaSpecs"]
        pods = [pod for pod in self.listed("pods", namespace, {}) if pod["metadata"].get("owner") == name]
        if not pods:
            for role, replica in replicas.items():
                if role == "Launcher":
                    meta = {"name": f"{name}-launcher", "namespace": namespace, "owner": name}
                    self.put("jobs", {"metadata": meta, "spec": {"template": replica["template"]}})
                    continue
                labels = {"training.kubeflow.org/job-name": name, "training.kubeflow.org/replica-type": role.lower()}
                for index in range(replica.get("replicas", 1)):
                    self._make_pod(f"{name}-{role.lower()}-{index}", namespace, replica["template"], labels, name)
            return
        launcher = self.objects.get(("jobs", namespace, f"{name}-launcher"), {}).get("status", {})
        ended = "conditions" in launcher or all(pod["status"].get("phase") == "Succeeded" for pod in pods)
        before = job.get("status", {}).get("conditions", [])
        if not before and all(pod["status"].get("phase") in ("Running", "Succeeded") for pod in pods):
            self._status(job, plural, {"conditions": [{"type": "Running", "status": "True"}]})
        elif before and ended:
            conditions = [{"type": "Running", "status": "False"}, {"type": "Succeeded", "status": "True"}]
            self._status(job, plural, {"conditions": conditions})

    def _trainjob(self, job: Manifest) -> None:
        """Kubeflow Trainer and JobSet: a pod for each node, by the runtime as the job patches it."""
        name, namespace, trainer = job["metadata"]["name"], job["metadata"]["namespace"], job["spec"]["trainer"]
        pods = [pod for pod in self.listed("pods", namespace, {}) if pod["metadata"].get("owner") == name]
        (patch,) = job["spec"]["runtimePatches"]
        (nodes,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        spec = nodes["template"]["spec"]["template"]["spec"]
        (node,) = spec["containers"]
        template = {"spec": {**spec, "containers": [{**node, "command": trainer["command"], "args": trainer["args"]}]}}
        for index in range(0 if pods else trainer["numNodes"]):
            labels = {"jobset.sigs.k8s.io/jobset-name": name, "batch.kubernetes.io/job-completion-index": str(index)}
            self._make_pod(f"{name}-{nodes['name']}-0-{index}-x", namespace, template, labels, name)
        if pods and all(pod["status"].get("phase") == "Succeeded" for pod in pods):
            self._status(job, "trainjobs", {"conditions": [{"type": "Complete", "status": "True"}]})

    def _make_pod(self, name: str, namespace: str, template: Manifest, labels: Manifest, owner: str) -> None:
        given = {**template.get("metadata", {}).get("labels", {}), **labels}
        meta = {"name": name, "namespace": namespace, "labels": given, "owner": owner}
        self.put("pods", {"metadata": meta, "spec": copy.deepcopy(template["spec"]), "status": {"phase": "Pending"}})

    def _pod(self, pod: Manifest) -> None:
        spec, namespace, name = pod["spec"], pod["metadata"]["namespace"], pod["metadata"]["name"]
        phase = pod.get("status", {}).get("phase", "Pending")
        if phase == "Pending":
            bound = {
                claim["metadata"]["name"]
                for claim in self.listed("persistentvolumeclaims", namespace, {})
                if claim.get("status", {}).get("phase") == "Bound"
            }
            wanted = spec.get("nodeSelector", {})
            fits = any(wanted.items() <= node["metadata"]["labels"].items() for node in self.of("nodes"))
            if claims(spec) <= bound and fits:
                ready = [{"name": one["name"], "ready": True, "state": {"running": {}}} for one in spec["containers"]]
                conditions = [{"type": "Ready", "status": "True"}]
                self._status(pod, "pods", {"phase": "Running", "conditions": conditions, "containerStatuses": ready})
            return
        (main,) = spec["containers"]
        if phase != "Running" or main.get("command", [""])[0] in ("sleep", "/usr/sbin/sshd"):
            return
        labels, jobs = (
            pod["metadata"].get("labels", {}),
            ("training.kubeflow.org/job-name", "jobset.sigs.k8s.io/jobset-name"),
        )
        if {labels[job] for job in jobs if job in labels} - self.read:
            return
        done = self._run(pod, main)
        self.logs[namespace, name] = done.stdout
        self._status(pod, "pods", {"phase": "Succeeded" if done.returncode == 0 else "Failed", "conditions": []})

    def _run(self, pod: Manifest, main: Manifest) -> "subprocess.CompletedProcess[str]":
        index = pod["metadata"]["labels"].get("batch.kubernetes.io/job-completion-index", "0")
        environ = {
            **os.environ, **{key: self.here(value) for key, value in environment(main).items()},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "JOB_COMPLETION_INDEX": index,
            **self.settings,
        }  # fmt: skip
        words = self.commands.get(main["name"]) or [*main["command"], *main.get("args", [])]
        command = [self.here(word) for word in words]
        merged = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.run(command, env=environ, cwd=ROOT, text=True, **merged)

    def here(self, text: str) -> str:
        """Paths of volumes as they are on this machine."""
        for volume in ("results", "data"):
            text = text.replace(f"/{volume}", f"{self.folder}/{volume}")
        return text


def claims(spec: Manifest) -> set[str]:
    """Names of the claims that a pod uses."""
    found = (volume.get("persistentVolumeClaim", {}).get("claimName") for volume in spec.get("volumes", []))
    return {name for name in found if name}


def judge(new: Manifest) -> None:
    """Refuse what is not valid, as far as the package for that is here and the kind is Kubernetes' own."""
    if new["apiVersion"] not in ("v1", "apps/v1", "batch/v1", "rbac.authorization.k8s.io/v1") or not pod_specs(new):
        return
    with contextlib.suppress(ImportError):
        import kubernetes_validate

        try:
            kubernetes_validate.validate(new, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            raise Refused(422, "Invalid", str(error).splitlines()[0]) from None


def selected(one: Manifest, asked: Mapping[str, str]) -> bool:
    """By labels (equality alone) and by name."""
    for term in filter(None, asked.get("labelSelector", "").split(",")):
        key, value = term.replace("==", "=").split("=")
        if one["metadata"].get("labels", {}).get(key) != value:
            return False
    field = asked.get("fieldSelector", "")
    return not field or one["metadata"]["name"] == field.removeprefix("metadata.name=")


def field(message: bytes, wanted: int) -> bytes:
    """A field of a message in Protocol Buffers that has only fields of bytes."""
    at = 0
    while at < len(message):
        number, at = message[at] >> 3, at + 1
        size = shift = 0
        while True:
            byte, at = message[at], at + 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if number == wanted:
            return message[at : at + size]
        at += size
    return b""


def merge(old: Any, new: Any) -> Any:
    """RFC 7396."""
    if not isinstance(new, dict) or not isinstance(old, dict):
        return new
    out = {**old, **{key: merge(old.get(key), value) for key, value in new.items()}}
    return {key: value for key, value in out.items() if value is not None}


class _Handler(BaseHTTPRequestHandler):
    server_of: Server
    protocol_version = "HTTP/1.1"

    def _answer(self, body: Any, status: int = 200, kind: str = "application/json") -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        place = urlsplit(self.path)
        many = parse_qs(place.query)
        asked = {name: values[0] for name, values in many.items()}
        parts = place.path.strip("/").split("/")
        try:
            with self.server_of.lock:
                self.server_of.act()
            n = {"api": 2, "apis": 3}.get(parts[0], len(parts))  # words before the name of a resource
            if len(parts) > n:
                self._resource(parts[n:], asked, many, body)
            else:
                self._discover(parts)
        except Refused as refused:
            status, reason, message = refused.args
            failure = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
            self._answer({**failure, "message": message, "reason": reason, "code": status}, status)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _do

    def _discover(self, parts: list[str]) -> None:
        kinds = self.server_of.kinds
        path = "/".join(parts)
        version = path.removeprefix("apis/").removeprefix("api/")
        if path == "version":
            self._answer({"major": "1", "minor": "32", "gitVersion": "v1.32.0"})
        elif path == "api":
            self._answer({"kind": "APIVersions", "versions": ["v1"]})
        elif path == "apis":
            groups = []
            for one in kinds:
                if "/" in one:
                    entry = {"groupVersion": one, "version": one.split("/")[1]}
                    groups.append({"name": one.split("/")[0], "versions": [entry], "preferredVersion": entry})
            self._answer({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        elif path == "openapi/v3":
            paths = {f"apis/{one}" if "/" in one else f"api/{one}": one for one in kinds}
            self._answer({"paths": {key: {"serverRelativeURL": f"/openapi/v3/{key}"} for key in paths}})
        elif path.startswith("openapi/v3/"):
            version = version.removeprefix("openapi/v3/").removeprefix("apis/").removeprefix("api/")
            group, _, short = version.rpartition("/")
            parameters = [{"name": name, "in": "query"} for name in ("dryRun", "fieldValidation")]
            operations = {
                f"/{path.removeprefix('openapi/v3/')}/{plural}/{{name}}": {
                    "patch": {
                        "parameters": parameters,
                        "x-kubernetes-group-version-kind": {"group": group, "version": short, "kind": kind},
                    }
                }
                for plural, kind, *_ in kinds[version]
            }
            self._answer({"openapi": "3.0.0", "info": {"title": "here", "version": "1"}, "paths": operations})
        elif version in kinds:
            found = [
                {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": in_namespace, "verbs": VERBS,
                 "shortNames": short}
                for plural, kind, in_namespace, short in kinds[version]
            ]  # fmt: skip
            self._answer({"kind": "APIResourceList", "groupVersion": version, "resources": found})
        else:
            raise Refused(404, "NotFound", "the server could not find the requested resource")

    def _resource(self, parts: list[str], asked: Manifest, many: Mapping[str, list[str]], body: bytes) -> None:
        server, namespace = self.server_of, ""
        if parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        plural, *rest = parts
        version, kind, _ = server.kind_of(plural)
        dry = asked.get("dryRun") == "All"
        if rest[1:] == ["log"]:
            with server.lock:
                meta = server.found((plural, namespace, rest[0]))["metadata"]
                server.read.add(meta.get("owner", ""))
                server.act()
            self._answer(server.logs.get((namespace, rest[0]), ""), kind=PLAIN)
        elif rest[1:] == ["exec"]:
            server.found((plural, namespace, rest[0]))
            self._exec(many["command"])
        elif asked.get("watch") in ("true", "1"):
            self._watch(plural, namespace, asked)
        else:
            with server.lock:
                key = (plural, namespace, rest[0] if rest else "")
                if self.command == "GET" and rest:
                    self._answer(server.found(key))
                elif self.command == "GET":
                    items = server.listed(plural, namespace, asked)
                    meta = {"resourceVersion": str(len(server.events))}
                    self._answer({"apiVersion": version, "kind": f"{kind}List", "metadata": meta, "items": items})
                elif self.command == "POST" and body.startswith(b"k8s\0"):  # Protocol Buffers: a namespace
                    name = field(field(field(body[4:], 2), 1), 1).decode()
                    made = {"apiVersion": version, "kind": kind, "metadata": {"name": name}}
                    self._answer(server.create(plural, namespace, made, dry), 201)
                elif self.command == "POST":
                    self._answer(server.create(plural, namespace, load(body.decode())[0], dry), 201)
                elif self.command == "PATCH":
                    self._answer(server.patch(plural, key, self.headers["Content-Type"], body, dry))
                elif self.command == "DELETE":
                    self._answer(server.delete(key))
                else:
                    raise Refused(405, "MethodNotAllowed", self.command)

    def _watch(self, plural: str, namespace: str, asked: Manifest) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        seen = int(asked.get("resourceVersion") or 0)
        with contextlib.suppress(OSError):
            while True:
                with self.server_of.lock:
                    self.server_of.act()
                    news = self.server_of.events[seen:]
                seen += len(news)
                for _, one, event, made in news:
                    inside = namespace in ("", made["metadata"].get("namespace"))
                    if one == plural and inside and selected(made, asked):
                        line = json.dumps({"type": event, "object": made}).encode() + b"\n"
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                time.sleep(0.02)
                self.wfile.write(b"")
                if self.server_of._server.socket.fileno() < 0:
                    return

    # -- exec: the channels of v5.channel.k8s.io, one byte before each message

    def _exec(self, words: list[str]) -> None:
        accept = base64.b64encode(hashlib.sha1((self.headers["Sec-WebSocket-Key"] + GUID).encode()).digest())
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept.decode())
        self.send_header("Sec-WebSocket-Protocol", "v5.channel.k8s.io")
        self.end_headers()
        self.close_connection = True
        folder = self.server_of.folder
        if words[0] == "tar":  # names in an archive have no leading slash
            command, cwd = [word.removeprefix("/") if word.startswith("/") else word for word in words], folder
        else:
            command, cwd = [self.server_of.here(word) for word in words], ROOT
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe)
        lock = threading.Lock()

        def send(payload: bytes, code: int = 2) -> None:
            head = bytes([128 | code])
            size = bytes([len(payload)]) if len(payload) < 126 else b"\x7e" + struct.pack(">H", len(payload))
            with lock, contextlib.suppress(OSError):
                self.wfile.write(head + size + payload)
                self.wfile.flush()

        def copy_out(stream: Any, channel: int) -> None:
            while chunk := stream.read1(32768):
                send(bytes([channel]) + chunk)

        def copy_in() -> None:
            with contextlib.suppress(OSError, ValueError):
                for code, payload in self._frames():
                    if code == 9:
                        send(payload, 10)
                    elif payload[:1] == b"\0":
                        process.stdin.write(payload[1:])  # type: ignore[union-attr]
                        process.stdin.flush()  # type: ignore[union-attr]
                    elif payload[:2] == b"\xff\0":
                        process.stdin.close()  # type: ignore[union-attr]

        threading.Thread(target=copy_in, daemon=True).start()
        outs = [threading.Thread(target=copy_out, args=given) for given in ((process.stdout, 1), (process.stderr, 2))]
        for thread in outs:
            thread.start()
        for thread in outs:
            thread.join()
        status: Manifest = {"metadata": {}, "status": "Success"}
        if code := process.wait():
            cause = {"reason": "ExitCode", "message": str(code)}
            message = f"command terminated with non-zero exit code: {code}"
            status.update(status="Failure", reason="NonZeroExitCode", message=message, details={"causes": [cause]})
        send(b"\3" + json.dumps(status).encode())
        send(struct.pack(">H", 1000), 8)

    def _frames(self) -> Iterator[tuple[int, bytes]]:
        """What the client sends, each message whole."""
        whole = b""
        while head := self.rfile.read(2):
            size = head[1] & 127
            if size >= 126:
                size = int.from_bytes(self.rfile.read(2 if size == 126 else 8), "big")
            mask = self.rfile.read(4)
            key = (mask * (size // 4 + 1))[:size]
            data = self.rfile.read(size)
            whole += (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")
            if head[0] & 15 == 8:
                return
            if head[0] & 128:
                yield head[0] & 15, whole
                whole = b""

    def log_message(self, *_: Any) -> None:
        pass


def definition(group: str, version: str, plural: str, kind: str) -> str:
    """A custom resource's definition without a schema, as text."""
    names = {"plural": plural, "kind": kind, "singular": kind.lower()}
    versions = [{"name": version, "served": True, "storage": True}]
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": versions}
    made = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": spec}
    text: str = yaml.safe_dump({**made, "metadata": {"name": f"{plural}.{group}"}})
    return text
