"""What this process may use of its machine: memory and cores, by the limits of its control groups too.

A process is in a group and all above it, of cgroup v2 or v1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROOT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def free_memory() -> int:
    """Bytes of memory that this process may still use: what the machine has free, and its control groups' limits."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, ValueError, StopIteration):
        pass  # no such file
    left = memory_left()
    return free if left is None else min(free, left)


def memory_left(root: Path = ROOT, own: Path = OWN) -> int | None:
    """Bytes that this process may still take, None without a limit.

    Cached files that nobody reads count as free, as in kubelet: the kernel gives their memory back when it is needed.

    Args:
        root: where the hierarchies are mounted.
        own: the file that names this process's groups.
    """
    rooms = []
    for group, v2 in _groups(root, own, "memory"):
        limit = _number(group / ("memory.max" if v2 else "memory.limit_in_bytes"))
        used = _number(group / ("memory.current" if v2 else "memory.usage_in_bytes"))
        if limit is not None and used is not None:
            cache = _statistic(group / "memory.stat", "inactive_file" if v2 else "total_inactive_file")
            rooms.append(max(0, limit - max(0, used - cache)))
    return min(rooms, default=None)


def cores_allowed(root: Path = ROOT, own: Path = OWN) -> float | None:
    """Cores of processor time that this process may use, None without a quota. The arguments are as above."""
    quotas = []
    for group, v2 in _groups(root, own, "cpu"):
        if v2:
            words = (_text(group / "cpu.max") or "max").split()
            quota, period = (int(words[0]), int(words[1])) if words[0].isdecimal() else (None, None)
        else:
            quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if quota and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def _groups(root: Path, own: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """(folder, whether it is of version 2) of each group that this process is in, from its own to the root's."""
    for line in (_text(own) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        v2 = controllers == ""
        if not v2 and controller not in controllers.split(","):
            continue
        # A container may see its group's name on the host, although it has only the group itself mounted, as the root.
        top = root if v2 else root / controller
        group = top / path.lstrip("/")
        while group != top and top in group.parents:
            yield group, v2
            group = group.parent
        yield top, v2


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    """The number in a file; None where there is no file, or it says "max" or -1."""
    text = (_text(path) or "").strip()
    return int(text) if text.isdecimal() else None


def _statistic(path: Path, name: str) -> int:
    """A line of a file of "name number" lines, 0 where it has none of that name."""
    lines = (line.split() for line in (_text(path) or "").splitlines())
    return next((int(words[1]) for words in lines if words[0] == name), 0)
