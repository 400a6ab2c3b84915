"""Definition files of Apptainer: their shell is sound, all packages are copied, and one of them builds."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.install.rooms import rooms

FOLDER = ROOT / "apptainer"
CLEAN = "/usr/bin/env -i HOME=/tmp PATH=/usr/sbin:/usr/bin:/sbin:/bin"
# Arguments: the root of the image, and a user, who may write to /tmp alone. The script is in $SCRIPT.
ENTER = f"""mount --bind "$0" "$0"
[ -z "$1" ] || mount -o remount,bind,ro "$0"
for folder in proc dev sys; do mount --rbind /$folder "$0/$folder"; done
mount -t tmpfs -o mode=1777 tmpfs "$0/tmp"
exec chroot ${{1:+--userspec=$1}} "$0" {CLEAN} /bin/sh -ec "$SCRIPT"
"""
TWO_RANKS = """mpirun --oversubscribe --bind-to none -n 2 python -m mnist_svm 3 --dataset digits --gpu none \
    --solver sklearn --workers 1 --expect-nodes 2 --results /tmp/results
"""


def sections(path: Path, **arguments: str) -> dict[str, str]:
    """The sections of a definition, unindented, with arguments or their defaults filled in; the lines before as ""."""
    header, *parts = re.split(r"^%(\w+)\n", path.read_text(), flags=re.MULTILINE)
    texts = [re.sub("^    ", "", text, flags=re.MULTILINE) for text in parts[1::2]]
    found = {"": header, **dict(zip(parts[::2], texts, strict=True))}
    values = dict(line.split("=", 1) for line in found["arguments"].split()) | arguments
    return {name: re.sub(r"{{\s*(\w+)\s*}}", lambda at: values[at[1]], text) for name, text in found.items()}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.def")), ids=lambda path: path.stem)
def test_the_shell_of_a_definition_is_sound_and_all_packages_are_copied(path: Path) -> None:
    """tests/k8s has shellcheck of the build script."""
    for name in ("environment", "post", "runscript", "test"):
        script = sections(path)[name]
        checks = [["sh", "-n"]]
        if shutil.which("shellcheck"):
            checks.append(["shellcheck", "--shell", "sh", "--exclude", "SC2155", "-"])
        for check in checks:
            done = subprocess.run(check, input="set -e\n" + script, capture_output=True, text=True)
            assert done.returncode == 0, f"%{name}\n{done.stdout}{done.stderr}"
    assert rooms() <= {line.split()[0] for line in sections(path)["files"].splitlines() if line}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif("CONTAINER" not in os.environ, reason="takes minutes: make test-container")
def test_an_image_builds_and_its_programs_run_in_it(tmp_path: Path) -> None:
    """The base by debootstrap, %files and %post; then %test, and two ranks, of a user who may write to /tmp alone."""
    if os.geteuid() or shutil.which("debootstrap") is None:
        pytest.skip("needs root and debootstrap")
    root, asked = tmp_path / "image", {"TORCH_INDEX": os.environ["TORCH_INDEX"]} if "TORCH_INDEX" in os.environ else {}
    parts = sections(FOLDER / "cpu.def", **asked)
    (release,) = re.findall(r"From: debian:(\w+)-slim", parts[""])
    subprocess.run(["debootstrap", "--variant=minbase", release, root], check=True, stdout=subprocess.DEVNULL)
    for source, target in (line.split() for line in parts["files"].splitlines() if line):
        (root / target[1:]).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "--recursive", ROOT / source, root / target[1:]], check=True)
    shutil.copy("/etc/resolv.conf", root / "etc")
    for script, user in ((parts["post"], ""), (parts["environment"] + parts["test"] + TWO_RANKS, "65534:65534")):
        command = ["unshare", "--mount", "sh", "-ec", ENTER, root, user]
        done = subprocess.run(command, env={**os.environ, "SCRIPT": script}, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
