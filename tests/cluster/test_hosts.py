"""The namespace hosts are hosts: apart, joined by a network, mortal, and gone without a trace."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import PATIENCE, wait_until

from .hosts import REPOSITORY, Host, Hosts
from .mpirun import RING, SERVE, mpirun

# mpirun 5.0.11 sometimes waits for ever for programs on three hosts that end at once (9 of 111 on a busy machine).
NAME = ["sh", "-c", "hostname; sleep 0.5"]


def alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def serving(hosts: Hosts) -> "subprocess.Popen[str]":
    """Return an mpirun on the first host whose ranks on all hosts are up."""
    job = hosts[0].popen(*mpirun(hosts, "python", "-c", SERVE), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert job.stdout is not None
    up = 0
    while up < len(hosts):
        line = job.stdout.readline()  # warnings of mpirun may come between
        assert line, f"mpirun ended with {job.wait()}"
        up += line == "up\n"
    return job


def test_hosts_are_apart_but_share_the_test_folder(hosts: Hosts, tmp_path: Path) -> None:
    for host in hosts:
        host.run("sh", "-c", f"hostname > /tmp/name; hostname > /dev/shm/name; hostname > {tmp_path}/$(hostname)")
    assert [host.run("cat", "/tmp/name", "/dev/shm/name").stdout.split() for host in hosts] == [
        [host.name] * 2 for host in hosts
    ]
    assert sorted(path.read_text().strip() for path in tmp_path.iterdir()) == ["node0", "node1", "node2"]
    assert not Path("/tmp/name").exists()
    assert hosts[0].run("sh", "-c", "echo $$; ls /proc | grep -c '^[0-9]'").stdout.split()[1] < "9"


def test_a_signal_reaches_the_command_itself(hosts: Hosts) -> None:
    job = hosts[1].popen("sleep", "1000")
    assert [process.pid for process in hosts[1].processes()] == [job.pid]
    job.terminate()
    assert job.wait(timeout=PATIENCE) == -signal.SIGTERM
    assert hosts.processes() == {}


def test_an_error_tells_what_the_command_said(hosts: Hosts) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        hosts[1].run("sh", "-c", "echo alas >&2; exit 7")
    assert caught.value.returncode == 7
    assert "node1" in caught.value.__notes__[0] and "alas" in caught.value.__notes__[0]


def test_mpirun_starts_one_rank_per_host(hosts: Hosts) -> None:
    assert sorted(hosts[0].run(*mpirun(hosts, *NAME)).stdout.split()) == ["node0", "node1", "node2"]
    assert wait_until(lambda: hosts.processes() == {}), hosts.processes()


def test_mpirun_can_run_on_other_hosts_than_its_own(hosts: Hosts) -> None:
    assert sorted(hosts[0].run(*mpirun(hosts[1:], *NAME)).stdout.split()) == ["node1", "node2"]


def test_ranks_pass_messages_around_a_ring(hosts: Hosts) -> None:
    lines = hosts[0].run(*mpirun(hosts, "python", "-c", RING)).stdout.splitlines()
    assert sorted(lines) == ["node0 3 2", "node1 3 0", "node2 3 1"]


def test_mpirun_tells_ranks_of_itself(hosts: Hosts) -> None:
    seen = hosts[0].run(*mpirun(hosts[1:2], "sh", "-c", "env; sleep 0.5")).stdout
    names = {line.split("=")[0] for line in seen.splitlines()}
    assert {"PMIX_RANK", "PMIX_NAMESPACE", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PRTE_LAUNCHED"} <= names
    assert not {name for name in names if name.startswith(("SLURM_", "PMI_"))}


@pytest.mark.parametrize("fault", [Host.kill, Host.cut], ids=["power loss", "link cut"])
def test_a_lost_host_ends_mpirun_and_its_ranks(hosts: Hosts, fault: Callable[[Host], None]) -> None:
    job = serving(hosts)
    fault(hosts[2])
    said, _ = job.communicate(timeout=PATIENCE)
    assert "lost communication" in said  # its exit status is 0 all the same
    assert wait_until(lambda: hosts.processes() == {}), hosts.processes()


def test_a_host_boots_again_after_power_loss(hosts: Hosts) -> None:
    sleeper = hosts[1].popen("sleep", "1000")
    hosts[1].run("touch", "/tmp/old")
    hosts[1].kill()
    assert sleeper.returncode == -signal.SIGKILL
    assert hosts[1].processes() == []
    hosts[1].start()
    assert hosts[1].run("ls", "/tmp/old", check=False).returncode != 0
    assert len(hosts[0].run(*mpirun(hosts, *NAME)).stdout.split()) == 3


def test_a_mended_link_carries_again(hosts: Hosts) -> None:
    hosts[1].cut()
    reach = "import socket, sys; socket.create_connection((sys.argv[1], 514))"
    with hosts[0].popen("python", "-c", reach, "node1", stderr=subprocess.DEVNULL) as cut_off:
        assert wait_until(lambda: hosts[0].run("python", "-c", reach, "node2", check=False).returncode == 0)
        time.sleep(2.3)  # the first try asks for the address three times, a second apart
        assert cut_off.poll() is None  # it still tries
        hosts[1].mend()
        hosts[0].run("python", "-c", reach, "node1")


def test_nothing_is_left_when_the_test_itself_is_killed(hosts: Hosts, tmp_path: Path) -> None:
    program = f"""
import pathlib, time
from tests.cluster.hosts import Hosts
with Hosts(2, shared=pathlib.Path({str(tmp_path)!r})) as hosts:
    sleepers = [host.popen("sh", "-c", "setsid sleep 1000 & setsid sleep 1000 & wait") for host in hosts]
    while sum(len(host.processes()) for host in hosts) < 6:
        time.sleep(0.01)
    print(*(process.pid for host in hosts for process in host.processes()), *(host.pid for host in hosts), flush=True)
    time.sleep(1000)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as test:
        try:
            assert test.stdout is not None
            pids = [int(pid) for pid in test.stdout.readline().split()]
            assert len(pids) >= 8 and all(map(alive, pids))
        finally:
            test.kill()
    assert wait_until(lambda: not any(map(alive, pids)))
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    assert "port0" not in links and "br0" not in links
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert os.listdir(tmp_path) != []  # only the folder of small files that a killed test cannot remove
