"""NVIDIA's driver by ctypes: facts about a GPU without a GPU library."""

from __future__ import annotations

import ctypes
from typing import Any


def described() -> dict[str, object]:
    """The first GPU that this process can see: name, total and free bytes. Raises OSError without a driver that works.

    It takes a context, which some modes allow only once.
    """
    library = ctypes.CDLL("libcuda.so.1")

    def call(function: str, *arguments: Any) -> None:
        code = getattr(library, function)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            library.cuGetErrorString(code, ctypes.byref(text))
            raise OSError(f"{function}: {(text.value or b'unknown error').decode()} ({code})")

    device, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(256)
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDeviceGetName", name, 256, device)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return {"name": name.value.decode(errors="replace"), "total": total.value, "free": free.value}
