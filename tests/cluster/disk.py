"""A file system that can hang, as Lustre and NFS do while a server fails over (as root).

    with Disk(folder) as disk:
        disk.freeze(12.0)            # every write to disk.point now waits in the kernel, and cannot be killed

It is ext4 on a loop device. `fsfreeze` stops its writers as a snapshot would; reading goes on.
"""

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

SIZE = 256 << 20  # bytes


class Disk:
    """Mounted at `point` while it is entered."""

    def __init__(self, folder: Path) -> None:
        self._image, self.point = folder / "disk.img", folder / "disk"
        self._freezing: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.point.mkdir()
        self._image.touch()
        os.truncate(self._image, SIZE)
        _run("mkfs.ext4", "-q", "-F", self._image)
        _run("mount", "-o", "loop", self._image, self.point)
        return self

    def __exit__(self, *_: object) -> None:
        self.thaw()
        _run("umount", "--lazy", self.point)

    def freeze(self, seconds: float) -> None:
        """Hang for so long; returns once it hangs. It ends in time even if this process does not live to see it."""
        self.thaw()
        script = f'fsfreeze -f "{self.point}" && echo frozen; sleep {seconds}; fsfreeze -u "{self.point}"'
        self._freezing = subprocess.Popen(
            ["sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        assert self._freezing.stdout is not None
        if self._freezing.stdout.readline() != "frozen\n":
            raise RuntimeError(f"{self.point} cannot be frozen")

    def thaw(self) -> None:
        """Hang no more."""
        if self._freezing is not None:
            subprocess.run(["fsfreeze", "-u", str(self.point)], stderr=subprocess.DEVNULL)
            self._freezing.terminate()
            self._freezing.communicate()
            self._freezing = None


@functools.cache
def missing() -> str:
    """Say why there can be no such disk here; empty when there can."""
    tools = [tool for tool in ("mkfs.ext4", "mount", "umount", "fsfreeze") if shutil.which(tool) is None]
    if tools:
        return f"a disk that hangs needs {', '.join(tools)}: run tests/cluster/install.sh"
    try:
        with tempfile.TemporaryDirectory() as folder, Disk(Path(folder)) as disk:
            disk.freeze(1.0)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        return f"a disk that hangs needs root and loop devices: {getattr(error, 'stderr', '') or error}".strip()
    return ""


def _run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True)
