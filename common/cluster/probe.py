"""What a worker would find, found out in a process of its own and printed as JSON: a rank imports no GPU library.

    python -m common.cluster.probe gpu       name, memory and identity of the one visible GPU, from the driver alone
    python -m common.cluster.probe torch     whether the library can be imported, and can compute on the visible device
    python -m common.cluster.probe a.b:c     the verdict that function c of module a.b returns, a check of that device

Each library has its own process, as in a study, since those of different CUDA versions may not share one.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import os
import subprocess
import sys

import numpy

from common.cluster.devices import Device, environment
from common.cluster.driver import Driver

PROBE_S = 180.0  # libraries on a slow network file system take minutes


def begin(device: Device, what: str, threads: int = 1) -> subprocess.Popen[str]:
    """Start a process that looks at "gpu" or imports a library, in the environment of a worker on this device."""
    with environment(device, threads):
        return subprocess.Popen(
            [sys.executable, "-m", "common.cluster.probe", what],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )


def answer(process: subprocess.Popen[str], limit_s: float = PROBE_S) -> dict[str, object]:
    """What that process says, once it has ended; {"error": why} where it cannot say anything else."""
    try:
        out, _ = process.communicate(timeout=limit_s)
        return dict(json.loads(out.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"error": f"no answer within {limit_s:g} s"}
    except (ValueError, IndexError):
        return {"error": f"the process ended with status {process.returncode}"}


def library(name: str) -> dict[str, object]:
    """Whether library `name` is installed. Raises whatever it raises when it is imported, or used on a GPU."""
    if importlib.util.find_spec(name) is None:
        return {"installed": False}
    module = importlib.import_module(name)
    if name == "torch" and os.environ.get("CUDA_VISIBLE_DEVICES"):
        module.ones(1, device="cuda").sum().item()
    elif name == "cupy" and os.environ.get("CUDA_VISIBLE_DEVICES"):
        (module.arange(3) ** 2).sum().item()  # compiles a kernel, too
    elif name == "cuml":
        samples = numpy.array([[0, 0], [0, 1], [1, 0], [1, 1]], numpy.float32)
        importlib.import_module("cuml.svm").SVC().fit(samples, numpy.array([0, 0, 1, 1], numpy.float32))
    return {"installed": True}


def verdict(function: str) -> dict[str, object]:
    """What a self-check finds, anew."""
    module, _, name = function.partition(":")
    return dataclasses.asdict(getattr(importlib.import_module(module), name)(anew=True))


def main(what: str) -> None:
    """Print, as JSON, what a probe finds: "gpu", a library, or "module:function" of a check."""
    try:
        found = Driver().described() if what == "gpu" else verdict(what) if ":" in what else library(what)
    except Exception as error:  # whatever a broken installation raises is the answer
        found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # as a worker ends


if __name__ == "__main__":
    main(sys.argv[1])
