"""A study of toys whose data and whose report wait in the kernel, as on a file system that does not answer.

Each reads a named pipe in the folder --marks, which holds it until somebody opens the other end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpitune.cli import run
from tests.toys import Toy


@dataclass(frozen=True)
class Stalls(Toy):
    """Toys on a file system that hangs."""

    def data(self) -> dict[str, Any]:
        assert self.marks is not None
        (self.marks / "data").read_bytes()
        return super().data()

    def report(self, *arguments: Any) -> None:
        assert self.marks is not None
        (self.marks / "report").read_bytes()
        super().report(*arguments)


if __name__ == "__main__":
    run(Stalls)
