"""What a worker would find, found out in a process of its own and printed as JSON, for `python -m common.doctor`.

    python -m common.doctor.probe gpu        name, memory and identity of the one visible GPU, from the driver alone
    python -m common.doctor.probe torch      whether the library can be imported, and can compute on the visible device

Each library has its own process, as in a study, since those of different CUDA versions may not share one.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import sys
import uuid


def gpu() -> dict[str, object]:
    """The first visible GPU by CUDA's driver API: name, uuid, total and free bytes. Raises OSError."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            cuda.cuGetErrorString(code, ctypes.byref(text))
            raise OSError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")

    device, context = ctypes.c_int(), ctypes.c_void_p()
    name, identity = ctypes.create_string_buffer(256), (ctypes.c_ubyte * 16)()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDeviceGetName", name, 256, device)
    call("cuDeviceGetUuid_v2", identity, device)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return {
        "name": name.value.decode(),
        "uuid": str(uuid.UUID(bytes=bytes(identity))),
        "total": total.value,
        "free": free.value,
    }


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
        found = gpu() if what == "gpu" else library(what)
    except Exception as error:  # whatever a broken installation raises is the answer
        found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # as a worker ends


if __name__ == "__main__":
    main(sys.argv[1])
