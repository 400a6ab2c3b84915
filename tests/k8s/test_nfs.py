"""The NFS server of overlays/nfs, with its own command, configuration and rights, and a client of NFS 4."""

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import need
from tests.helpers import PATIENCE, ROOT
from tests.k8s.manifests import overlay
from tests.k8s.pods import CONTAINERFILE

USER = "version=4&uid=1000&gid=1000"
# In namespaces of its own: the disk, /tmp and /run are empty, and the port is no other server's.
POD = """
ip link set lo up
config=$(cat {config})
for folder in /exports /tmp /run /etc/ganesha; do mkdir -p $folder; mount -t tmpfs -o mode=755 none $folder; done
chmod 1777 /tmp
printf '%s\\n' "$config" >{target}
{init}
exec setpriv --bounding-set=-all,{rights} --no-new-privs {command}
"""


def missing() -> str:
    absent = [tool for tool in ("ganesha.nfsd", "nfs-cp", "unshare", "setpriv") if shutil.which(tool) is None]
    return f"no {', '.join(absent)}: tests/cluster/install.sh" if absent else ""


@pytest.fixture
def server() -> Iterator["subprocess.Popen[str]"]:
    need(missing(), "" if os.geteuid() == 0 else "namespaces need root")
    (deployment,) = (one for one in overlay("nfs") if one["kind"] == "Deployment")
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    (init,), (container,) = pod["initContainers"], pod["containers"]
    security = container["securityContext"]
    assert security["runAsUser"] == 0 and security["capabilities"]["drop"] == ["ALL"]
    rights = ",".join("+" + name.lower() for name in security["capabilities"]["add"])
    ((config, target),) = re.findall(r"^COPY (k8s/ganesha.conf) (\S+)", CONTAINERFILE, re.MULTILINE)
    assert target in container["command"]
    script = POD.format(
        config=ROOT / config, target=target, init=shlex.join(init["command"]), rights=rights,
        command=shlex.join(container["command"]),
    )  # fmt: skip
    apart = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec", script]
    process = subprocess.Popen(apart, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    yield process
    process.kill()
    process.communicate()


def test_files_are_written_in_the_name_of_the_searches_user(server: "subprocess.Popen[str]", tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("a line\n")

    def inside(*command: Any) -> "subprocess.CompletedProcess[str]":
        enter = ["nsenter", "--target", child, "--net", "--mount", "--root"]
        return subprocess.run([*enter, *map(str, command)], capture_output=True, text=True)

    write = f"printf 'a line\\n' > /tmp/journal && nfs-cp /tmp/journal 'nfs://127.0.0.1/results/journal?{USER}'"
    end = time.monotonic() + PATIENCE
    child = ""
    while not child or inside("sh", "-c", write).returncode:
        assert server.poll() is None and time.monotonic() < end, server.stdout and server.stdout.read()
        time.sleep(0.2)
        child = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().strip()
    content = (tmp_path / "journal").read_bytes()
    listed = inside("stat", "-c", "%u %s", "/exports/results/journal").stdout.split()
    assert listed == ["1000", str(len(content))]
    assert inside("nfs-cp", "/tmp/journal", f"nfs://127.0.0.1/outside?{USER}").returncode, "the root folder is root's"
    assert inside("ls", "/exports/.ganesha").stdout.split(), "locks are remembered on the disk"
