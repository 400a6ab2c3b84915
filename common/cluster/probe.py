"""Questions about GPUs and libraries, answered by a process of its own as JSON: a rank imports no GPU library.

    python -m common.cluster.probe PARENT WHAT

    gpu       name, memory and UUID of the visible GPU, from the driver
    torch     whether the library can be imported, and can compute on the visible device
    a.b:c X   what function c of module a.b returns for the argument X, such as the result of a check of the device

Each library has a process of its own, as in a study: libraries of different CUDA versions cannot always share one.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence

import numpy

from common.cluster.devices import Device, environment
from common.cluster.driver import Driver
from common.cluster.process import die_with
from jit.compiler import missing_for_triton

PROBE_S = 180.0  # libraries on a slow network file system take minutes


def begin(device: Device, what: str, *, threads: int = 1, arguments: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start a process that looks at "gpu", imports a library or calls a function, as a worker on this device would.

    It does not outlive this process.
    """
    with environment(device, threads):
        return subprocess.Popen(
            [sys.executable, "-m", "common.cluster.probe", str(os.getpid()), what, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )


def answer(process: subprocess.Popen[str], limit_s: float = PROBE_S) -> dict[str, object]:
    """The answer of that process, once it has ended; {"error": why} where it has none."""
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
    """Whether library `name` is installed. Raises what the library raises when it is imported or used on a GPU."""
    if importlib.util.find_spec(name) is None:
        return {"installed": False}
    if name == "triton" and (missing := missing_for_triton()):
        raise RuntimeError(f"it needs {missing}")
    module = importlib.import_module(name)
    if name == "torch" and os.environ.get("CUDA_VISIBLE_DEVICES"):
        module.ones(1, device="cuda").sum().item()
    elif name == "cupy" and os.environ.get("CUDA_VISIBLE_DEVICES"):
        (module.arange(3) ** 2).sum().item()  # compiles a kernel, too
    elif name == "cuml":
        samples = numpy.array([[0, 0], [0, 1], [1, 0], [1, 1]], numpy.float32)
        importlib.import_module("cuml.svm").SVC().fit(samples, numpy.array([0, 0, 1, 1], numpy.float32))
    return {"installed": True}


def called(function: str, arguments: Sequence[str]) -> dict[str, object]:
    """The dictionary or dataclass that a function returns."""
    module, _, name = function.partition(":")
    found = getattr(importlib.import_module(module), name)(*arguments)
    return found if isinstance(found, dict) else dataclasses.asdict(found)


def main(parent: int, what: str, *arguments: str) -> None:
    """Print, as JSON, what a probe finds: "gpu", a library, or what "module:function" returns."""
    die_with(parent)
    try:
        found = Driver().described() if what == "gpu" else called(what, arguments) if ":" in what else library(what)
    except Exception as error:  # whatever a broken installation raises is the answer
        found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # as a worker ends


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
