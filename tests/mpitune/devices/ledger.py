"""A device's memory in files, for workers that share it; they import this alone."""

from __future__ import annotations

import time
from pathlib import Path

TOTAL = 10


class Ledger:
    """A memory of TOTAL bytes: a file for each process, which holds what it has taken for as long as it lives."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.folder, self.mine = folder, folder / f"{pid}.taken"

    def total(self) -> int:
        return TOTAL

    def free(self) -> int:
        taken = {file: file.read_text() for file in self.folder.glob("*.taken")}
        return TOTAL - sum(int(text or 0) for file, text in taken.items() if alive(file.stem))

    def take(self, n_bytes: int) -> bool:
        time.sleep(0.02)  # Time for another to take it as well, if the lock did not prevent that.
        self.mine.write_text(str(n_bytes))
        if self.free() < 0:
            (self.folder / "overdrawn").touch()
        return True

    def give_back(self) -> None:
        self.mine.write_text("0")


def alive(pid: str) -> bool:
    """Whether the process is there and no zombie; what is not the number of one counts as the system's own."""
    stat = Path(f"/proc/{pid}/stat")
    return not pid.isdigit() or (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z")
