"""How trainings are admitted to the memory of their device: on a CPU a share of it, on a GPU by turns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from common.cluster.devices import free_memory, workers_here
from common.cluster.turns import Turns, device_name

if TYPE_CHECKING:
    import torch

# Of a GPU, left for what no estimate covers, such as the memory of a captured graph, and for a worker that is starting:
# its context alone takes half a GiB. A slice of a GPU has less to leave.
SPARE_BYTES = 768 * 2**20
SPARE_PART = 0.05


class Share:
    """A CPU worker's share of its node's memory, which is nobody else's: computed once, before any network."""

    def __init__(self) -> None:
        self._bytes = free_memory() // workers_here()

    @contextmanager
    def admitted(self, n_bytes: int) -> Iterator[int | None]:
        """Reserve memory for the time of a training: gives None, or the bytes that there are if too few."""
        yield None if n_bytes <= self._bytes else self._bytes


class CudaMemory:
    """Memory of CUDA, and of PyTorch's allocator in this process."""

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
        """As one block that stays with the allocator, which then cuts the tensors of a training from it."""
        try:
            self._torch.empty(n_bytes, dtype=self._torch.uint8, device=self._device)
        except self._torch.cuda.OutOfMemoryError:
            return False
        return True

    def give_back(self) -> None:
        self._torch.cuda.empty_cache()


def spare_bytes(total: int) -> int:
    """Bytes of a GPU with `total` bytes that are promised to no training."""
    return min(SPARE_BYTES, int(SPARE_PART * total))


def admission(device: torch.device) -> Share | Turns:
    """How trainings are admitted to the memory of this device."""
    if device.type == "cpu":
        return Share()
    memory = CudaMemory(device)
    return Turns(memory, memory.name)
