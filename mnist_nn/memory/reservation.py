"""Reservations of a device's memory: a CPU worker has a part of its own, the workers of a GPU share a lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mpitune.devices.devices import free_memory, workers_here
from mpitune.devices.memory_lock import MemoryLock, device_name, spare_bytes

if TYPE_CHECKING:
    import torch


class CpuMemory:
    """A CPU worker's own part of its node's memory, computed once, before any network."""

    def __init__(self) -> None:
        self._bytes = free_memory() // workers_here()

    @contextmanager
    def reserved(self, n_bytes: int) -> Iterator[int]:
        """As `MemoryLock.reserved`, without waiting."""
        yield min(n_bytes, self._bytes)


class CudaMemory:
    """Memory of a GPU, and of PyTorch's allocator in this process; a `mpitune.devices.memory_lock.DeviceMemory`."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device, self._torch = device, torch
        self.name = device_name(str(torch.cuda.get_device_properties(device).uuid))

    def total(self) -> int:
        total = self._torch.cuda.mem_get_info(self._device)[1]
        return total - spare_bytes(total)

    def free(self) -> int:
        self.give_back()
        free, total = self._torch.cuda.mem_get_info(self._device)
        return free - spare_bytes(total)

    def take(self, n_bytes: int) -> bool:
        """Allocate one block. It stays with the allocator, which then cuts the tensors of a training from it."""
        try:
            self._torch.empty(n_bytes, dtype=self._torch.uint8, device=self._device)
        except self._torch.cuda.OutOfMemoryError:
            return False
        return True

    def give_back(self) -> None:
        self._torch.cuda.empty_cache()


def reservations(device: torch.device) -> CpuMemory | MemoryLock:
    """What trainings on this device reserve their memory with."""
    if device.type == "cpu":
        return CpuMemory()
    memory = CudaMemory(device)
    return MemoryLock(memory, memory.name)
