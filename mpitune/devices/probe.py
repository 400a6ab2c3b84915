"""Questions about GPUs and libraries, answered by a process of its own as JSON: a rank imports no GPU library.

    python -m mpitune.devices.probe PARENT WHAT

    gpu       name, memory and UUID of the visible GPU, from the driver
    torch     whether the library can be imported, and can compute on the visible device
    a.b:c X   what function c of module a.b returns for the argument X, such as the result of a check of the device; a
              generator's last value, which is the last that it had in time

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
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy

from mpitune._jit.compiler import missing_for_triton
from mpitune.devices.devices import Device, environment
from mpitune.devices.driver import Driver
from mpitune.ranks.process import die_with

PROBE_S = 180.0  # libraries on a slow network file system take minutes


def begin(device: Device, what: str, *, threads: int = 1, arguments: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start a process that looks at "gpu", imports a library or calls a function, as a worker on this device would.

    It does not outlive this process.
    """
    with environment(device, threads):
        return subprocess.Popen(
            [sys.executable, "-m", "mpitune.devices.probe", str(os.getpid()), what, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )


def answer(process: subprocess.Popen[str], limit_s: float = PROBE_S) -> dict[str, object]:
    """The last answer of that process; {"error": why} where it has none.

    Where the process failed after an answer, or had to be ended, the answer says why as "ended".
    """
    ended = ""
    try:
        out, _ = process.communicate(timeout=limit_s)
        if process.returncode:
            ended = f"the process ended with status {process.returncode}"
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        ended = f"no answer within {limit_s:g} s"
    for line in reversed(out.splitlines()):
        with suppress(ValueError, TypeError):  # a line that was cut, or a library's
            return dict(json.loads(line)) | ({"ended": ended} if ended else {})
    return {"error": ended or "the process said nothing"}


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


def called(function: str, arguments: Sequence[str]) -> Iterator[dict[str, object]]:
    """The dictionary or dataclass that a function returns, or all that a generator yields."""
    module, _, name = function.partition(":")
    found = getattr(importlib.import_module(module), name)(*arguments)
    if isinstance(found, Iterator):
        yield from found
    else:
        yield found if isinstance(found, dict) else dataclasses.asdict(found)


def answers(what: str, arguments: Sequence[str]) -> Iterator[dict[str, object]]:
    """What is to be printed, the last of it is the answer."""
    if ":" in what:
        yield from called(what, arguments)
    else:
        yield Driver().described() if what == "gpu" else library(what)


def main(parent: int, what: str, *arguments: str) -> None:
    """Print, as JSON, what a probe finds: "gpu", a library, or what "module:function" returns."""
    die_with(parent)
    try:
        for found in answers(what, arguments):
            print(json.dumps(found), flush=True)
    except Exception as error:  # whatever a broken installation raises is the answer
        print(json.dumps({"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}), flush=True)
    os._exit(0)  # as a worker ends


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
