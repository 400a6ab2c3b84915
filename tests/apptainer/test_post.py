"""cpu.def built as Apptainer would, in a chroot made by debootstrap: `make test-container`, as root, minutes, 8 GB.

Then %test and a search on two MPI ranks run in it as a user who may write to /tmp alone, as in an image that is a file.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from mpitune.storage.history import read_journal
from tests.apptainer.definitions import FOLDER, read
from tests.helpers import ROOT, mpirun_command

pytestmark = [
    pytest.mark.skipif("CONTAINER" not in os.environ, reason="takes minutes: make test-container"),
    pytest.mark.timeout(1800),
    pytest.mark.slow,
]
PYPI = "https://pypi.org/simple"  # has PyTorch too, for CUDA and ten times as large
CLEAN = "/usr/bin/env -i HOME=/tmp PATH=/usr/sbin:/usr/bin:/sbin:/bin"
ENTER = """\
mount --bind {root} {root}
{remount}
mount --rbind /proc {root}/proc
mount --rbind /dev {root}/dev
mount --rbind /sys {root}/sys
mount {tmp} {root}/tmp
exec chroot {user} {root} {environment} /bin/sh -ec "$SCRIPT"
"""


def inside(
    root: Path, script: str, *, user: str = "", launcher: Sequence[str] = (), environment: str = CLEAN
) -> "subprocess.CompletedProcess[str]":
    """Run a script in the chroot: as root, who may write; as a user, who may not; or started by a launcher outside.

    As in Apptainer, the launcher's ranks share /tmp and the environment with it.
    """
    enter = ENTER.format(
        root=root,
        remount=f"mount -o remount,bind,ro {root}" if user or launcher else ":",
        tmp="--rbind /tmp" if launcher else "-t tmpfs -o mode=1777 tmpfs",
        user=f"--userspec={user}" if user else "",
        environment=environment,
    )
    command = [*launcher, "unshare", "--mount", "sh", "-ec", enter]
    environ = {**os.environ, "SCRIPT": script}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=900)


def reachable(index: str) -> str:
    """That index of packages, or PyPI: pip would ask one that is out of reach six times for each package, minutes."""
    try:
        urlopen(index + "/", timeout=20).close()
    except HTTPError:
        return index  # it answers
    except OSError:
        return PYPI
    return index


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The root of a container that was built: base, %files, %post."""
    if os.geteuid() or shutil.which("debootstrap") is None:
        pytest.skip("needs root and debootstrap")
    definition = read(FOLDER / "cpu.def")
    release = re.findall(r"From: debian:(\w+)-slim", definition.header)[0]
    root = tmp_path_factory.mktemp("image")
    root.chmod(0o755)
    subprocess.run(["debootstrap", "--variant=minbase", release, root], check=True, stdout=subprocess.DEVNULL)
    for source, destination in definition.files().items():
        target = root / destination.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, target)
    shutil.copy("/etc/resolv.conf", root / "etc")
    environment = CLEAN
    if certificates := os.environ.get("PIP_CERT"):  # behind a proxy that signs for others
        (root / "etc" / "pip.pem").write_bytes(Path(certificates).read_bytes())
        environment += " PIP_CERT=/etc/pip.pem"
    index = os.environ.get("TORCH_INDEX", definition.arguments["TORCH_INDEX"])
    done = inside(root, definition.shell("post", TORCH_INDEX=reachable(index)), environment=environment)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    yield root
    shutil.rmtree(root)


def test_the_test_section_passes_for_a_user_who_cannot_write(image: Path) -> None:
    definition = read(FOLDER / "cpu.def")
    script = definition.shell("environment") + definition.shell("test")
    done = inside(image, script, user="65534:65534")
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize(
    "arguments", ["mnist_svm 3 --solver sklearn", "mnist_nn 2 2 --max-channels 8 --max-hidden-layer 16 --epochs 2"]
)
def test_both_searches_run_inside_on_two_ranks(image: Path, arguments: str) -> None:
    definition = read(FOLDER / "cpu.def")
    script = definition.shell("environment") + (
        f"cd /tmp\nmpirun --oversubscribe --bind-to none -n 2 python -m {arguments} --dataset digits --gpu none "
        "--workers 1 --expect-nodes 2 --results /tmp/results\npython -m mpitune status /tmp/results\n"
        "ls /tmp/results/figures\n"
    )
    done = inside(image, script, user="65534:65534")
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert ": complete" in done.stdout and done.stdout.endswith(".svg\n")


def test_an_mpirun_outside_starts_ranks_inside(image: Path, tmp_path: Path) -> None:
    """The hybrid model: two containers, each with the image's own MPI, are two ranks of the mpirun of this machine."""
    definition = read(FOLDER / "cpu.def")
    script = definition.shell("environment") + (
        "exec python -m mnist_svm 2 --solver sklearn --dataset digits --gpu none --workers 1 --expect-nodes 2 "
        f"--results {tmp_path}/svm\n"
    )
    done = inside(image, script, launcher=mpirun_command(2), environment="")
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    history = read_journal(tmp_path / "svm")
    assert history is not None and history.complete
    assert {result.place.rank for result in history.results.values()} == {0, 1}
