"""NVIDIA's driver by ctypes: facts about GPUs without a GPU library."""

from __future__ import annotations

import ctypes
import uuid
from typing import Any


class Driver:
    """The driver's library, which this process initialises. Raises OSError where it is absent or does not work."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            raise OSError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")

    def names(self) -> list[str]:
        """Names of all GPUs that this process can see, in CUDA's order, as entries for CUDA_VISIBLE_DEVICES."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        kinds = ["MIG" if " MIG " in self.model(number) else "GPU" for number in range(count.value)]
        return [f"{kind}-{self.uuid(number)}" for number, kind in enumerate(kinds)]

    def model(self, number: int = 0) -> str:
        name = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", name, 256, self._device(number))
        return name.value.decode(errors="replace")

    def uuid(self, number: int = 0) -> str:
        """The UUID of one GPU, or of the slice of one, without "GPU-" or "MIG-"."""
        identity = (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGetUuid_v2", identity, self._device(number))
        return str(uuid.UUID(bytes=bytes(identity)))

    def described(self) -> dict[str, object]:
        """The first GPU: name, total and free bytes. It takes a context, which some modes allow only once."""
        context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device(0))
        self._call("cuCtxSetCurrent", context)
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return {"name": self.model(), "total": total.value, "free": free.value}

    def _device(self, number: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), number)
        return device
