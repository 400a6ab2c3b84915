"""A real Slurm on namespace hosts: slurmctld on the first, slurmd with fake GPUs on the others, munge on all.

    with Hosts(4, shared=folder) as hosts, Slurm(hosts) as slurm:
        slurm.run("srun", "--nodes=3", "hostname").stdout
        slurm.wait(1)["JobState"]                        # "COMPLETED", of a job that sbatch has numbered

A fake GPU is a device node that does nothing: Slurm counts it and sets CUDA_VISIBLE_DEVICES, and no library finds a
device behind it. There are no cgroups: a job's processes are found by their ancestry (proctrack/linuxproc), and cores
and devices are counted but not confined. There is no accounting either, so `scontrol show job` is the record.

Times are cut where Slurm is patient by default: a batch job starts within a second (the first one in three), a requeued
job after 6 s (cred_expire; else two minutes), SIGKILL follows SIGTERM after 3 s, a lost node is noticed in about 30 s.
"""

import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.helpers import PATIENCE

from . import hosts as namespaces
from .hosts import Host, Hosts, Process

FINISHED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "DEADLINE"}

SLURM_CONF = """\
ClusterName=test
SlurmctldHost={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=/tmp/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmdPidFile=/tmp/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
MpiDefault=none
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1
ReturnToService=2
SlurmdTimeout=10
KillWait=3
NodeName={nodes} CPUs=8 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Say why Slurm cannot be started here; empty when it can."""
    tools = [tool for tool in ("slurmctld", "slurmd", "srun", "munged") if shutil.which(tool) is None]
    return namespaces.missing() or (f"no {', '.join(tools)}: run tests/cluster/install.sh" if tools else "")


class Slurm:
    """Slurm on `hosts` with `gpus` fake GPUs on each node. A context manager, to be left before the hosts are."""

    def __init__(self, hosts: Hosts, gpus: int = 4) -> None:
        self.login: Host = hosts[0]
        self.nodes: list[Host] = hosts[1:]
        self.folder = hosts.folder / "slurm"
        self._gpus = gpus
        self._daemons: list[subprocess.Popen[Any]] = []
        self._own: set[int] = set()

    def __enter__(self) -> Self:
        if reason := missing():
            raise RuntimeError(reason)
        self._configure()
        for host in (self.login, *self.nodes):
            self.start(host)
        self.settle()
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in self._daemons:
            daemon.kill()

    def start(self, host: Host) -> None:
        """Start the daemons of `host`: after its boot, and again after a reboot."""
        host.run("mount", "--bind", self.folder / "etc", "/etc/slurm")
        places = [f"--{name}-file=/tmp/munge.{name}" for name in ("pid", "log", "seed")]
        key = self.folder / "munge.key"
        host.run("munged", "--force", "--socket=/tmp/munge.socket", f"--key-file={key}", *places)
        self._own |= {process.pid for process in host.processes()}
        daemon = host.popen("slurmctld" if host is self.login else "slurmd", "-D", stderr=subprocess.DEVNULL)
        self._daemons.append(daemon)
        self._own.add(daemon.pid)

    def run(self, *command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run `command` (srun, squeue, ...) on the login host; `options` as for `Host.run`."""
        return self.login.run(*command, **options)

    def settle(self, timeout: float = PATIENCE) -> None:
        """Cancel all jobs and wait until every node is idle. Raises TimeoutError."""
        self.run("scancel", "--user=root", check=False)
        _until(lambda: self._states() == {"idle"}, timeout, lambda: f"nodes are {self._states()}: see {self.folder}")

    def job(self, number: int) -> dict[str, str]:
        """What `scontrol show job` tells: JobState, ExitCode ("75:0"), Reason, NodeList, Restarts, StdOut and so on."""
        words = self.run("scontrol", "--oneliner", "show", "job", str(number)).stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, number: int, states: set[str] = FINISHED, timeout: float = PATIENCE) -> dict[str, str]:
        """Wait until the job is in one of `states`; return `job(number)`. Raises TimeoutError after `timeout` s."""
        _until(lambda: self.job(number)["JobState"] in states, timeout, lambda: f"job is {self.job(number)}")
        return self.job(number)

    def cancel(self, number: int, *options: str) -> None:
        """Run scancel on the job; `options` such as "--signal=USR1"."""
        self.run("scancel", *options, str(number))

    def processes(self) -> dict[str, list[Process]]:
        """The living processes of jobs (slurmstepd too, the daemons not) on each node that has any."""
        alive = {host.name: [p for p in host.processes() if p.pid not in self._own] for host in self.nodes}
        return {name: found for name, found in alive.items() if found}

    def _states(self) -> set[str]:
        return set(self.run("sinfo", "--noheader", "--Node", "--format=%T", check=False).stdout.split())

    def _configure(self) -> None:
        etc = self.folder / "etc"
        for folder in (etc, self.folder / "state", *(self.folder / f"spool-{node.name}" for node in self.nodes)):
            folder.mkdir(parents=True)
        gpus = [self.folder / f"gpu{index}" for index in range(self._gpus)]
        for gpu in gpus:
            os.mknod(gpu, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # a twin of /dev/null: slurmd wants device nodes
        nodes = ",".join(node.name for node in self.nodes)
        conf = SLURM_CONF.format(controller=self.login.name, folder=self.folder, nodes=nodes, gpus=self._gpus)
        (etc / "slurm.conf").write_text(conf)
        (etc / "gres.conf").write_text("".join(f"Name=gpu File={gpu}\n" for gpu in gpus))
        key = self.folder / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(os.urandom(128))


def _until(true: Callable[[], bool], timeout: float, otherwise: Callable[[], str]) -> None:
    """Wait until `true()` holds. Raises TimeoutError with `otherwise()` after `timeout` seconds."""
    end = time.monotonic() + timeout
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(otherwise())
        time.sleep(0.1)
