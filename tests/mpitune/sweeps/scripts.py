"""Training scripts as people have them, shortened, and the sweep files that name them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.helpers import begun

PLAIN = """
import argparse, json, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--units", type=int)
args = parser.parse_args()
for epoch in range(8):
    print(json.dumps({"loss": abs(args.lr - 0.1) * args.units + 1 / (epoch + 1)}), flush=True)
    time.sleep(float(os.environ.get("NAP", "0")))
"""
WITH_WANDB = """
import os, sys, time
import wandb
wandb.init(project="toy")
config = wandb.config
for epoch in range(12):
    wandb.log({"val": {"loss": abs(config.lr - 0.1) * config.net["units"] + 1 / (epoch + 1)}, "epoch": epoch})
    if "--wait" in sys.argv and epoch == 5 and config.lr > 0.5:
        time.sleep(600)  # a run that is not stopped would hang here
"""
SWEEP: dict[str, Any] = {
    "program": "train.py",
    "method": "random",
    "metric": {"name": "loss", "goal": "minimize"},
    "parameters": {
        "lr": {"distribution": "log_uniform_values", "min": 1e-3, "max": 1.0},
        "units": {"values": [1, 2, 3]},
    },
    "run_cap": 8,
}


def written(folder: Path, script: str = PLAIN, **changes: Any) -> Path:
    """A folder with train.py and a sweep file; None takes a key away."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(script)
    sweep = {key: value for key, value in {**SWEEP, **changes}.items() if value is not None}
    (folder / "sweep.json").write_text(json.dumps(sweep))
    return folder / "sweep.json"


def ran(file: Path, *options: Any, status: int = 0, **environ: str) -> str:
    """What `python -m mpitune run` said on stderr in the folder of a sweep file, once it has ended with this status."""
    words = ["-m", "mpitune", "run", file.name, *options]
    job = begun(*words, cwd=file.parent, env={"WANDB_SILENT": "true", **environ}, stdout=subprocess.PIPE)
    out, err = job.communicate()
    assert job.returncode == status, (job.returncode, out, err)
    return err
