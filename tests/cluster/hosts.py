"""Several hosts on one machine, made of Linux namespaces (as root).

    with Hosts(3, shared=folder) as hosts:
        hosts[1].run("hostname").stdout          # "node1\\n"
        hosts[0].run(*mpirun(hosts, "python", "-m", "mnist_svm"))
        hosts[2].kill()                          # power loss: all its processes at once, no packet more
        hosts[2].start()                         # and it boots again

A host has network, host name, IPC, process and mount namespaces of its own: its own /proc, /tmp, /dev/shm and
/etc/hosts, and for the rest the file system of the machine. A veth pair joins it to a bridge, which lives in one more
network namespace, the switch; nothing is ever made in the machine's own network.

                    this process
          +--------------+--------------+----------------+
       switch          node0          node1            node2         (process 1 of each: init.py)
        br0 --port0---- eth0            |                |
         |---port1---------------------eth0              |
         +---port2--------------------------------------eth0

Nothing is left behind, by construction: process 1 of each namespace dies with this process (PR_SET_PDEATHSIG), the
kernel kills the other processes of a process namespace with its process 1, and a namespace without processes
is freed together with its mounts and links.
"""

import contextlib
import ctypes
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.helpers import PATIENCE

from .init import LOGIN

REPOSITORY = Path(__file__).resolve().parents[2]
INIT = Path(__file__).with_name("init.py")
PYTHON = [sys.executable, "-I", "-S"]

_NEWNS, _NEWUTS, _NEWIPC, _NEWPID, _NEWNET = 0x00020000, 0x04000000, 0x08000000, 0x20000000, 0x40000000
_SURROUNDINGS = _NEWNET | _NEWUTS | _NEWIPC | _NEWNS  # all but the processes, which only children can enter
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@functools.cache
def missing() -> str:
    """Say why hosts cannot be made here; empty when they can."""
    tools = [tool for tool in ("ip", "mount", "unshare") if shutil.which(tool) is None]
    if sys.platform != "linux" or tools:
        return f"hosts need Linux with {', '.join(tools) or 'namespaces'}: run tests/cluster/install.sh"
    trial = ["unshare", "--net", "--mount", "--pid", "--fork", "ip", "link", "add", "type", "veth"]
    done = subprocess.run(trial, capture_output=True, text=True)
    return f"hosts need root and namespaces: {done.stderr.strip()}" if done.returncode else ""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """A login's environment with this Python first on PATH; nothing of the caller's launcher or scheduler leaks in."""
    path = f"{Path(sys.executable).parent}:{LOGIN['PATH']}"
    return LOGIN | {"PATH": path, "LANG": "C.UTF-8", "PYTHONPATH": str(REPOSITORY)} | dict(extra or {})


@dataclass(frozen=True)
class Process:
    """A process of a host: its number as seen from outside (so that `os.kill` reaches it) and its command line."""

    pid: int
    command: str


class Host:
    """One host; made, started and ended by `Hosts`."""

    def __init__(self, hosts: "Hosts", index: int) -> None:
        self.name = f"node{index}"
        self.address = f"10.0.0.{index + 1}"
        self._hosts = hosts
        self._mac = f"02:00:00:00:00:{index + 1:02x}"  # the same after a reboot, as others may remember it
        self._port = f"port{index}"
        self._init: subprocess.Popen[str] | None = None
        self._commands: list[subprocess.Popen[Any]] = []

    def __repr__(self) -> str:
        return f"<Host {self.name}>"

    @property
    def pid(self) -> int:
        """Number of the host's process 1 as seen from outside. Raises RuntimeError when the host is off."""
        if self._init is None:
            raise RuntimeError(f"{self.name} is off")
        return self._init.pid

    def start(self) -> None:
        """Boot. Call it from the main thread: the host ends with the thread that started it."""
        self._spawn()
        self._join()
        self._hosts.look_up_again()

    def kill(self) -> None:
        """Power loss: the link goes silent, then all processes die at once. `start` boots the host again."""
        if self._init is None:
            return
        self.cut()
        self._init.kill()
        for command in self._commands:  # the kernel keeps process 1 until those outside have seen the others die
            command.wait()
        self._init.wait()
        self._init = None
        self._commands.clear()
        with contextlib.suppress(subprocess.CalledProcessError):  # the kernel may have removed it already
            self._hosts.switch(f"link del {self._port}")

    def cut(self) -> None:
        """Cut the link: packets vanish in both directions, and no end is told."""
        self._hosts.switch(f"link set {self._port} nomaster")

    def mend(self) -> None:
        """Undo `cut`."""
        self._hosts.switch(f"link set {self._port} master br0")
        self._hosts.look_up_again()

    def popen(
        self, *command: str | Path, env: Mapping[str, str] | None = None, cwd: Path = REPOSITORY, **options: Any
    ) -> subprocess.Popen[str]:
        """Start `command` on this host; signals sent to the Popen reach the command itself.

        `env` is added to `environment()`; `options` are subprocess.Popen's.
        """
        pidfd = os.pidfd_open(self.pid)

        def enter() -> None:
            _check(_libc.setns(pidfd, _SURROUNDINGS))
            os.chdir(cwd)

        try:
            with _children(lambda: _libc.setns(pidfd, _NEWPID)):
                process = subprocess.Popen(
                    [str(word) for word in command],
                    **{"text": True, "stdin": subprocess.DEVNULL, "start_new_session": True} | options,
                    env=environment(env),
                    preexec_fn=enter,
                )
        finally:
            os.close(pidfd)
        self._commands = [*(command for command in self._commands if command.poll() is None), process]
        return process

    def run(
        self, *command: str | Path, timeout: float = PATIENCE, check: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run `command` on this host and return its output.

        Raises TimeoutExpired after `timeout` seconds (only the command itself is killed then), and with `check`
        CalledProcessError (its note holds the output) when the exit status is not 0.
        """
        process = self.popen(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        if check and process.returncode != 0:
            error = subprocess.CalledProcessError(process.returncode, process.args, stdout, stderr)
            error.add_note(f"on {self.name}, stdout:\n{stdout}\nstderr:\n{stderr}")
            raise error
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def processes(self) -> list[Process]:
        """The host's living processes without its process 1; empty when it is off."""
        if self._init is None:
            return []
        namespace = os.readlink(f"/proc/{self.pid}/ns/pid")
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has just ended, or is a zombie
                if os.readlink(entry / "ns/pid") == namespace and int(entry.name) != self.pid:
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    if command:  # a zombie has none
                        found.append(Process(int(entry.name), command))
        return sorted(found, key=lambda process: process.pid)

    def _spawn(self) -> None:
        """Start process 1, which sets the host up."""
        hosts = self._hosts
        kept = [str(path) for path in (hosts.shared, REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))]
        command = [*PYTHON, str(INIT), "host", self.name, str(hosts.folder / "hosts"), *kept]
        with _children(lambda: _libc.unshare(_NEWPID)):
            self._init = _born(command, _SURROUNDINGS)

    def _join(self) -> None:
        """Wait for the host's set-up and connect it to the switch."""
        assert self._init is not None and self._init.stdout is not None
        with self._init.stdout as stdout:
            if stdout.readline() != "ready\n":
                raise RuntimeError(f"{self.name} did not start: exit status {self._init.wait()}")
        self._hosts.switch(
            f"link add {self._port} type veth peer name eth0 netns {self.pid} address {self._mac}",
            f"link set {self._port} master br0 up",
        )
        _ip(self.pid, "link set lo up", f"addr add {self.address}/24 dev eth0", "link set eth0 up")


class Hosts:
    """`count` hosts, node0 and so on. A context manager; iterable, and indexed by number or slice.

    `shared` is a folder that all hosts see under the same path although it may be inside /tmp; hand pytest's base
    folder in, and every test's tmp_path is a network file system. (pytest makes them root's alone: for the job of
    another user, hand in a folder that this user can enter.)
    """

    def __init__(self, count: int, shared: Path) -> None:
        self.shared = shared.resolve()
        self.folder = self.shared
        self._hosts = [Host(self, index) for index in range(count)]
        self._switch: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        if reason := missing():
            raise RuntimeError(reason)
        self.folder = Path(tempfile.mkdtemp(prefix="hosts-", dir=self.shared))
        lines = ["127.0.0.1 localhost", *(f"{host.address} {host.name}" for host in self)]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        try:
            self._switch = _born(["sleep", "infinity"], _NEWNET)
            self.switch("link add br0 type bridge", "link set br0 up")
            for host in self:
                host._spawn()
            for host in self:
                host._join()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self:
            host.kill()
        if self._switch is not None:
            self._switch.kill()
            self._switch.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __len__(self) -> int:
        return len(self._hosts)

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts)

    def __getitem__(self, index: Any) -> Any:
        return self._hosts[index]

    def processes(self) -> dict[str, list[Process]]:
        """The living processes of each host that has any."""
        return {host.name: found for host in self if (found := host.processes())}

    def look_up_again(self) -> None:
        """End all lookups of addresses: a new connection would fail with one that began when nobody could answer."""
        for host in self:
            if host._init is not None:
                _ip(host.pid, "neigh flush all")

    def switch(self, *commands: str) -> None:
        """Run commands of ip(8) in the switch. Raises CalledProcessError."""
        assert self._switch is not None
        _ip(self._switch.pid, *commands)


def ranks_of(host: Host) -> list[int]:
    """The ranks of a study of toys, without their launcher."""
    return [p.pid for p in host.processes() if "-m tests.toys" in p.command and "--host" not in p.command]


def _check(status: int) -> None:
    """Raise OSError with errno's message when a call of the C library failed."""
    if status != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextlib.contextmanager
def _children(enter: Callable[[], int]) -> Iterator[None]:
    """Children started inside are born in the process namespace that `enter()` chooses (it cannot be entered later)."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    try:
        _check(enter())
        try:
            yield
        finally:
            _check(_libc.setns(own, _NEWPID))
    finally:
        os.close(own)


def _born(command: list[str], namespaces: int) -> subprocess.Popen[str]:
    """Start `command` in fresh namespaces; it dies with this process."""

    def unshare() -> None:
        _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))
        _check(_libc.unshare(namespaces))

    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,  # Ctrl-C in the terminal is for the tests, which then end the hosts
        preexec_fn=unshare,
    )


def _ip(pid: int, *commands: str) -> None:
    """Run commands of ip(8) in the network of process `pid`. Raises CalledProcessError."""
    pidfd = os.pidfd_open(pid)
    try:
        subprocess.run(
            ["ip", "-batch", "-"],
            input="\n".join(commands) + "\n",
            text=True,
            check=True,
            capture_output=True,
            preexec_fn=lambda: _check(_libc.setns(pidfd, _NEWNET)),
        )
    finally:
        os.close(pidfd)
