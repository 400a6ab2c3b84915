"""An MPI job acted out: what the MPI operator and the kubelet do with a manifest, with namespace hosts as pods.

    with Hosts(4, shared=folder) as hosts:
        job = ActedJob(manifest, hosts, folder)         # host 0 becomes the launcher's pod, the others the workers'
        job.start_workers()
        assert job.launch().returncode == 0

A pod has a root file system of its own: the machine's, as a stand-in for the image's base, with what the
Containerfile adds (COPY, ENV, WORKDIR, the user and the virtual environment), and over it what the operator
mounts (key pair, hostfile) and the manifest asks for (volumes). Commands run as the manifest's user, in no
environment but that of image, manifest and operator. Names resolve as in a cluster: those of the workers' service only
in full, a pod's own also in short.

Source of what the operator does: its controller, pkg/controller/mpi_job_controller.go of kubeflow/mpi-operator 0.6.
"""

import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.cluster.hosts import REPOSITORY, Host, Hosts
from tests.helpers import PATIENCE
from tests.k8s.manifests import K8S, Manifest, environment

CONTAINERFILE = (K8S / "Containerfile").read_text()
MADE = "/tmp/pod"  # in a host: a private tmpfs
ROOT = f"{MADE}/root"


def missing() -> str:
    """Say why pods cannot be acted out here; empty when they can."""
    absent = [tool for tool in ("/usr/sbin/sshd", "ssh", "ssh-keygen", "chroot") if shutil.which(tool) is None]
    return f"no {', '.join(absent)}: apt-get install openssh-server openssh-client" if absent else ""


def image_environment() -> dict[str, str]:
    """ENV of the Containerfile."""
    lines = re.findall(r"^ENV ((?:.*\\\n)*.*)", CONTAINERFILE, re.MULTILINE)
    words = shlex.split(" ".join(lines).replace("\\\n", " "))
    return dict(word.split("=", 1) for word in words)


class ActedJob:
    """An MPIJob in namespace `default`, its volumes as folders of the same name in `folder`."""

    def __init__(self, manifest: Manifest, hosts: Hosts, folder: Path) -> None:
        self.name: str = manifest["metadata"]["name"]
        self.spec = manifest["spec"]
        self.folder = folder
        self.launcher, self.workers = hosts[0], list(hosts[1:])
        assert len(self.workers) == self._replica("Worker")["replicas"]
        self._service = f"{self.name}.default.svc"
        secret = folder / "secret"
        secret.mkdir()
        keygen = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-m", "PEM", "-N", "", "-f", str(secret / "id_rsa")]
        subprocess.run(keygen, check=True)
        shutil.copy(secret / "id_rsa.pub", secret / "authorized_keys")
        for file in secret.iterdir():
            file.chmod(0o644)
        slots = self.spec["slotsPerWorker"]
        hostfile = [f"{self._pod_name(worker)}.{self._service} slots={slots}\n" for worker in self.workers]
        (folder / "hostfile").write_text("".join(hostfile))
        for volume in ("results", "data"):
            (folder / volume).mkdir()
            shutil.chown(folder / volume, self._user, self._user)  # fsGroup
        self._make_pod(self.launcher, "Launcher")

    def start_workers(self) -> None:
        """Make the worker pods that are not there, and wait until all are ready."""
        for worker in self.workers:
            if not worker.processes():
                self._make_pod(worker, "Worker")
                worker.popen(*self._command("Worker", {"K_MPI_JOB_ROLE": "worker"}))
        port = self._container("Worker")["readinessProbe"]["tcpSocket"]["port"]
        probe = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"
        for worker in self.workers:
            end = time.monotonic() + PATIENCE
            while worker.run(sys.executable, "-I", "-S", "-c", probe, check=False).returncode:
                assert time.monotonic() < end, f"{worker} is not ready"
                time.sleep(0.05)

    def popen_launcher(self, **options: Any) -> "subprocess.Popen[str]":
        """Start the launcher's container."""
        operator = {
            "K_MPI_JOB_ROLE": "launcher",
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
            "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
            "OMPI_MCA_orte_set_default_slots": str(self.spec["slotsPerWorker"]),
            "NVIDIA_VISIBLE_DEVICES": "",
            "NVIDIA_DRIVER_CAPABILITIES": "",
        }
        pipe = subprocess.PIPE
        return self.launcher.popen(
            *self._command("Launcher", operator), stdout=pipe, stderr=subprocess.STDOUT, **options
        )

    def launch(self, timeout: float = 2 * PATIENCE) -> "subprocess.CompletedProcess[str]":
        """Run the launcher's container to its end."""
        process = self.popen_launcher()
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, output, "")

    # -- what the operator knows

    def _replica(self, role: str) -> Manifest:
        replica: Manifest = self.spec["mpiReplicaSpecs"][role]
        return replica

    def _container(self, role: str) -> Manifest:
        container: Manifest = self._replica(role)["template"]["spec"]["containers"][0]
        return container

    @property
    def _user(self) -> int:
        user: int = self._replica("Worker")["template"]["spec"]["securityContext"]["runAsUser"]
        return user

    def _pod_name(self, host: Host) -> str:
        return f"{self.name}-launcher" if host is self.launcher else f"{self.name}-worker-{self.workers.index(host)}"

    def _command(self, role: str, operator: dict[str, str]) -> list[str]:
        """The container's command as its user in its environment, to be run on the pod's host."""
        container = self._container(role)
        env = {**image_environment(), "HOME": "/home/mpiuser", **environment(container), **operator}
        (workdir,) = re.findall(r"^WORKDIR (.*)", CONTAINERFILE, re.MULTILINE)
        command = [*container["command"], *container.get("args", [])]
        return [
            *("env", "-i", *(f"{name}={value}" for name, value in env.items())),
            *("/usr/sbin/chroot", f"--userspec={self._user}:{self._user}", f"--groups={self._user}", ROOT),
            *("/usr/bin/setpriv", "--bounding-set=-all", "--no-new-privs"),
            *("/usr/bin/env", f"--chdir={workdir}", *command),
        ]

    def _make_pod(self, host: Host, role: str) -> None:
        (home,) = re.findall(r"useradd .*--uid 1000 (\w+)", CONTAINERFILE)
        copies = re.findall(r"^COPY (k8s/\S+) (\S+)", CONTAINERFILE, re.MULTILINE)
        mounts = {mount["name"]: mount["mountPath"] for mount in self._container(role)["volumeMounts"]}
        volumes = self._replica(role)["template"]["spec"]["volumes"]
        names = [f"{host.address} {self._pod_name(host)}", "127.0.0.1 localhost"]
        names += [f"{worker.address} {self._pod_name(worker)}.{self._service}" for worker in self.workers]
        lines = [
            f"mkdir {MADE}; mount -t tmpfs tmpfs {MADE}; mkdir {MADE}/upper {MADE}/work {ROOT}",
            f"mount -t overlay -o lowerdir=/,upperdir={MADE}/upper,workdir={MADE}/work overlay {ROOT}",
            f"for folder in proc dev sys; do mount --rbind /$folder {ROOT}/$folder; done",
            f"mount -t tmpfs -o mode=1777 tmpfs {ROOT}/tmp",
            f"chmod 755 {ROOT}/root",  # where this Python may live
            f"sed -i '/:{self._user}:/d' {ROOT}/etc/passwd",
            f"echo {home}:x:{self._user}:{self._user}::/home/{home}:/bin/sh >> {ROOT}/etc/passwd",
            f"install -d -o {self._user} -g {self._user} {ROOT}/home/{home}",
            *(f"mkdir -p {ROOT}{Path(at).parent}; cp {REPOSITORY}/{source} {ROOT}{at}" for source, at in copies),
            *(f"mkdir -p {ROOT}{path}; mount --bind -o ro {source} {ROOT}{path}"
              for path, source in (("/opt/venv", sys.prefix), ("/opt/search", REPOSITORY))),
            f"mkdir -p {ROOT}{self.spec['sshAuthMountPath']}",
            f"mount -t tmpfs -o mode=1777 tmpfs {ROOT}{self.spec['sshAuthMountPath']}",
            f"cp {self.folder}/secret/* {ROOT}{self.spec['sshAuthMountPath']}",
            f"printf '%s\\n' {shlex.join(names)} > {ROOT}/etc/hosts",
            f"hostname {self._pod_name(host)}",
        ]  # fmt: skip
        for volume in volumes:
            path = ROOT + mounts[volume["name"]]
            if "persistentVolumeClaim" in volume:
                source = self.folder / volume["persistentVolumeClaim"]["claimName"]
                lines.append(f"mkdir -p {path}; mount --bind {source} {path}")
            else:
                lines.append(f"mount -t tmpfs -o mode=1777,size={volume['emptyDir']['sizeLimit'][:-1]} tmpfs {path}")
        if role == "Launcher":
            lines.append(f"mkdir -p {ROOT}/etc/mpi; cp {self.folder}/hostfile {ROOT}/etc/mpi/hostfile")
        host.run("sh", "-ec", "\n".join(lines), cwd=Path("/"))
