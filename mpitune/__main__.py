"""`python -m mpitune TOOL ...`, or `mpitune TOOL ...`: tools for studies, machines and scripts, one file each.

A tool is a module with a function `main` that takes its arguments and returns an exit status. It is imported when it is
asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from mpitune.folders import set_cache_variables
from mpitune.processes.output import outlive_readers

TOOLS = {
    "run": "a sweep file of Weights & Biases: on all devices, without its server",
    "status": "how far a study is, and what has failed",
    "report": "one page about a study",
    "doctor": "what would go wrong in a job, with its fix",
}
SCRIPTS = {
    "script.py": "run this script: its calls by joblib (n_jobs) are made on all nodes",
    "-m module": "the same for a module, as by python -m; a path of a command will do, too",
    "--sklearn script.py": "besides, scikit-learn's searches and SVC mean this package's",
}
PROG = "python -m mpitune"
USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool that the first word names. Returns the exit status."""
    outlive_readers()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return 0
    tool, *rest = words
    if tool not in TOOLS and (tool.endswith(".py") or tool.startswith("-") or os.path.isfile(tool)):
        tool, rest = "script", words
    elif tool not in TOOLS:
        print(f"{PROG}: there is no tool {tool!r}\n\n{_overview()}", file=sys.stderr)
        return USAGE_ERROR
    if tool != "script":  # which runs somebody's script: that is not ours to change
        set_cache_variables()
    return int(import_module(f"mpitune.tools.{tool}").main(rest))


def _overview() -> str:
    lines = [f"  {name:20} {what}" for name, what in {**TOOLS, **SCRIPTS}.items()]
    return "\n".join([f"usage: {PROG} TOOL ...", "", *lines, "", f"{PROG} TOOL --help tells more."])


if __name__ == "__main__":
    sys.exit(main())
