"""A search for a test with Slurm: trials of one or two whole nodes, whose command the job's own launcher starts."""

from __future__ import annotations

import sys

from mpitune import Command, Int, RunOptions, search

PROGRAM = """
import json, os, sys
open(f"{sys.argv[1]}/{os.environ['SLURM_PROCID']}.host", "w").write(os.uname()[1])
print(json.dumps({"loss": float(sys.argv[2])}))
"""

if __name__ == "__main__":
    program = PROGRAM.replace("{", "{{").replace("}", "}}")
    command = Command([sys.executable, "-c", program, "{folder}", "{nodes}.{x}"])
    study = search(
        command, {"x": Int(0, 3)}, strategy="grid", minimize="loss", nodes=lambda params: 1 + params["x"] % 2,
        workers=1, results=sys.argv[1], options=RunOptions(quiet=True),
    )  # fmt: skip
    print([trial.values.get("loss") for trial in study.trials], [trial.error for trial in study.trials], flush=True)
