"""Questions about GPUs and libraries, answered by a process of its own as JSON: a rank imports no GPU library.

    python -m mpitune.devices.probe PARENT WHAT

    gpu       name and memory of the visible GPU, from the driver
    torch     whether the library can be imported, and can compute on the visible device

Each library has a process of its own, as in a study: libraries of different CUDA versions cannot always share one.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

import numpy

from mpitune.devices.choose import Device, environment
from mpitune.devices.driver import described
from mpitune.errors import UsageError
from mpitune.processes.process import die_with

PROBE_S = 180.0  # libraries on a slow network file system take minutes


def begin(device: Device, what: str, *, threads: int = 1) -> subprocess.Popen[str]:
    """Start a process that asks the driver or imports a library, as a worker on this device would.

    It does not outlive this process.
    """
    with environment(device, threads):
        return subprocess.Popen(
            [sys.executable, "-m", "mpitune.devices.probe", str(os.getpid()), what],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )


def answer(process: subprocess.Popen[str], limit_s: float = PROBE_S) -> dict[str, object]:
    """The answer of that process; {"error": why} where it has none."""
    try:
        out, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"error": f"no answer within {limit_s:g} s"}
    for line in reversed(out.splitlines()):
        with suppress(ValueError, TypeError):  # a library's
            return dict(json.loads(line))
    return {"error": f"the process ended with status {process.returncode}"}


def why_unusable(library: str, visible: str) -> Callable[[], str]:
    """Begin to ask why a library cannot compute on a GPU. What is returned waits for the answer.

    That is the reason and the fix, in one line; "" if it can.

    `visible`: CUDA_VISIBLE_DEVICES of a worker.
    """
    device = Device(f"cuda:{visible}", visible)
    process = begin(device, library)

    def wait() -> str:
        answered = answer(process)
        wrong = answered.get("error") or (None if answered["installed"] else "it is not installed")
        fix = "install the requirements-cu*.txt that fits the driver (nvidia-smi shows its CUDA version)"
        return f"{library} cannot use {device.name} ({wrong}): {fix}" if wrong else ""

    return wait


class NotInstalled(UsageError):
    """A library is not installed on this host. Others may have it."""


def require(name: str) -> None:
    """Raises NotInstalled where library `name` is not."""
    if importlib.util.find_spec(name) is None:
        files = "requirements.txt (with GPUs requirements-cu12.txt, -cu13 or -cu11)"
        raise NotInstalled(f"{name} is not installed: pip install -r {files}")


def library(name: str) -> dict[str, object]:
    """Whether library `name` is installed. Raises what the library raises when it is imported or used on a GPU."""
    if importlib.util.find_spec(name) is None:
        return {"installed": False}
    module = importlib.import_module(name)
    if name == "torch" and os.environ.get("CUDA_VISIBLE_DEVICES"):
        module.ones(1, device="cuda").sum().item()
    elif name == "cuml":
        samples = numpy.array([[0, 0], [0, 1], [1, 0], [1, 1]], numpy.float32)
        importlib.import_module("cuml.svm").SVC().fit(samples, numpy.array([0, 0, 1, 1], numpy.float32))
    return {"installed": True}


def main(parent: int, what: str) -> None:
    """Print the answer to "gpu", or the name of a library, as JSON."""
    die_with(parent)
    try:
        print(json.dumps(described() if what == "gpu" else library(what)), flush=True)
    except Exception as error:  # whatever a broken installation raises is the answer
        print(json.dumps({"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}), flush=True)
    os._exit(0)  # as a worker ends


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
