"""The GPUs that CUDA gives to this process, by a name that no two of a host have in common."""

from __future__ import annotations

import ctypes


def gpu_names() -> list[str]:
    """Names of the GPUs in CUDA's order; [] where there is none. Asks the driver, and makes no context.

    Of a GPU that is cut into slices (MIG) CUDA gives a process one slice, however many are listed.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    n, device, name = ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(n)):
        return []
    names = []
    for number in range(n.value):
        if cuda.cuDeviceGet(ctypes.byref(device), number) or cuda.cuDeviceGetUuid_v2(name, device):
            return []
        names.append(bytes(name).hex())
    return names
