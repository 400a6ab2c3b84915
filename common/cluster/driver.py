"""NVIDIA's driver itself, by ctypes: what it says of GPUs where no GPU library is wanted.

python -m common.cluster.driver      the UUIDs of all GPUs that the driver shows, as JSON, or {"error": ...}
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
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

    def uuids(self) -> list[str]:
        """Of all GPUs that this process can see, in CUDA's order."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return [self.uuid(number) for number in range(count.value)]

    def uuid(self, number: int = 0) -> str:
        """Of one GPU, or of the slice of one, without "GPU-" or "MIG-"."""
        identity = (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGetUuid_v2", identity, self._device(number))
        return str(uuid.UUID(bytes=bytes(identity)))

    def described(self) -> dict[str, object]:
        """The first GPU: name, uuid, total and free bytes. It takes a context, which some modes allow only once."""
        name, context = ctypes.create_string_buffer(256), ctypes.c_void_p()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        device = self._device(0)
        self._call("cuDeviceGetName", name, 256, device)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return {"name": name.value.decode(), "uuid": self.uuid(), "total": total.value, "free": free.value}

    def _device(self, number: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), number)
        return device


def main() -> None:
    try:
        print(json.dumps(Driver().uuids()))
    except OSError as error:
        print(json.dumps({"error": str(error)}))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
