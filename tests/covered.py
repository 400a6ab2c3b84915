"""What the tests run of each room, as a table: make coverage.

python -m tests.covered REPORT      of the JSON that `coverage json` writes
"""

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

from tests.helpers import ROOT
from tests.rooms import modules, room_of


def main(report: Path) -> None:
    """Print lines and branches of each room with their shares, and the files of which least is run."""
    names = {str(path.relative_to(ROOT)): name for name, path in modules().items()}
    found = json.loads(report.read_text())["files"]
    files = {file: content for file, content in found.items() if file in names}  # and no copy that a test made
    rooms = {name for file, name in names.items() if file.endswith("__init__.py")}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for file, content in files.items():
        for of in (room_of(names[file], rooms), "all"):
            counts[of].update({name: n for name, n in content["summary"].items() if isinstance(n, int)})
    print("| room | lines | run | branches | run |\n|---|---|---|---|---|")
    for room, n in sorted(counts.items(), key=lambda item: (item[0] == "all", item[0])):
        branches = f"{n['covered_branches'] / n['num_branches']:.0%}" if n["num_branches"] else ""
        share = f"{n['covered_lines'] / max(1, n['num_statements']):.0%}"
        print(f"| {room} | {n['num_statements']} | {share} | {n['num_branches']} | {branches} |")
    print("\nmost lines that no test runs:")
    for file, content in sorted(files.items(), key=lambda item: -item[1]["summary"]["missing_lines"])[:25]:
        summary = content["summary"]
        print(f"{summary['missing_lines']:5} of {summary['num_statements']:4}  {file}: {content['missing_lines']}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
