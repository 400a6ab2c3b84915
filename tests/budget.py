"""Whether the code is larger than pyproject.toml allows: `make lint` counts the lines of each part, and fails above."""

from __future__ import annotations

import sys
import tomllib

from tests.helpers import ROOT


def main() -> int:
    over = 0
    for name, part in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["budget"].items():
        files = [path for pattern in part["files"] for path in ROOT.glob(pattern)]
        lines = sum(path.read_bytes().count(b"\n") for path in files)
        print(f"{name}: {lines} of {part['lines']} lines")
        over += lines > part["lines"]
    return min(over, 1)


if __name__ == "__main__":
    sys.exit(main())
