"""How a network lies on the processes: each has all weights (ddp), or a shard of them (fsdp)."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mpitune.errors import UsageError


def _is_sharded(tensor: Tensor) -> bool:
    """Whether this is a DTensor. Only fsdp imports what makes them, which takes as long as half of PyTorch."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def full_tensor(tensor: Any) -> Tensor:
    """A tensor, or all shards of one, on the CPU."""
    whole: Tensor = tensor.full_tensor() if _is_sharded(tensor) else tensor
    return whole.cpu().contiguous()


def distribute_like(weight: Any, content: Tensor | None) -> Tensor:
    """Rank 0's `content`, on the device and in the shards of `weight`."""
    whole = torch.empty(weight.shape, device=weight.device)
    if content is not None:
        whole.copy_(content)
    dist.broadcast(whole, src=0)
    if _is_sharded(weight):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(whole, weight.device_mesh, weight.placements)
    return whole


def wrap_model(network: nn.Module, strategy: str, *, device: torch.device) -> nn.Module:
    """The network with what its strategy adds to it.

    CPUs are faster with the channels last in memory; FSDP refuses that.

    Args:
        network: on the device.
        strategy: "ddp" or "fsdp".
        device: of this process.
    """
    if strategy == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        # Without a mesh it would take the GPUs that are there, also where the training is on CPUs.
        fully_shard(network, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))
        assert isinstance(network, FSDPModule)
        if dist.get_backend() != "nccl":
            if not hasattr(network, "set_force_sum_reduction_for_comms"):
                raise UsageError(f"--strategy fsdp without NCCL needs torch>=2.9, and this is {torch.__version__}")
            network.set_force_sum_reduction_for_comms(True)  # only NCCL has an operation for the mean
        return network
    network = network.to(memory_format=torch.channels_last)
    if device.type == "cpu" and dist.get_world_size() == 1:
        return network
    devices = None if device.type == "cpu" else [device.index]
    return nn.parallel.DistributedDataParallel(network, device_ids=devices, gradient_as_bucket_view=True)
