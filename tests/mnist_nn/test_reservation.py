"""A CPU worker's share of memory, and what PyTorch takes of a GPU's for others to see."""

import pytest

from mnist_nn.memory import reservation
from mpitune.devices.memory_lock import spare_bytes


def test_a_cpu_workers_share_is_its_own(monkeypatch):
    monkeypatch.setattr(reservation, "free_memory", lambda: 100)
    monkeypatch.setattr(reservation, "workers_here", lambda: 4)
    memory = reservation.CpuMemory()
    for wish, granted in ((25, 25), (26, 25)):
        with memory.reserved(wish) as found:
            assert found == granted


@pytest.mark.gpu
def test_memory_taken_on_a_gpu_is_seen_by_others_and_used_by_this_process():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    device, n_bytes = torch.device("cuda"), 2**30
    memory = reservation.CudaMemory(device)
    before = memory.free()
    assert memory.take(n_bytes)
    after = torch.cuda.mem_get_info(device)[0]
    spare = spare_bytes(torch.cuda.mem_get_info(device)[1])
    assert before + spare - after >= n_bytes
    weights = torch.empty(n_bytes // 8, device=device)
    assert torch.cuda.mem_get_info(device)[0] == after
    del weights
    memory.give_back()
    assert memory.free() >= before
    assert not memory.take(2 * memory.total())
