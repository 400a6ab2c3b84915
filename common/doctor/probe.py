"""What a worker would find, found out in a process of its own and printed as JSON, for `python -m common.doctor`.

    python -m common.doctor.probe gpu        name, memory and identity of the one visible GPU, from the driver alone
    python -m common.doctor.probe torch      whether the library can be imported, and can compute on the visible device

Each library has its own process, as in a study, since those of different CUDA versions may not share one.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys

from common.cluster.driver import Driver


def library(name: str) -> dict[str, object]:
    """Whether library `name` is installed. Raises whatever it raises when it is imported, or used on a GPU."""
    if importlib.util.find_spec(name) is None:
        return {"installed": False}
    module = importlib.import_module(name)
    if name == "torch" and os.environ.get("CUDA_VISIBLE_DEVICES"):
        module.ones(1, device="cuda").sum().item()
    elif name == "cuml":
        importlib.import_module("cuml.svm")
    return {"installed": True}


def main(what: str) -> None:
    try:
        found = Driver().described() if what == "gpu" else library(what)
    except Exception as error:  # whatever a broken installation raises is the answer
        found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # as a worker ends


if __name__ == "__main__":
    main(sys.argv[1])
