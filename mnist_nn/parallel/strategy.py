"""How a network lies on the processes: each has all weights (ddp), or a shard of them (fsdp).

What only fsdp needs is imported where it is used: it takes as long as half of PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from mpitune.errors import UsageError

States = tuple[dict[str, Any], dict[str, Any]]


def wrap_model(network: nn.Module, strategy: str, device: torch.device) -> nn.Module:
    """The network, which is on the device, with what its strategy adds to it.

    CPUs are faster with the channels last in memory; FSDP refuses that.
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


def whole_states(network: nn.Module, optimizer: torch.optim.Optimizer, strategy: str) -> States:
    """The states of network and optimizer, of whole weights, in rank 0. All processes must call this."""
    if strategy == "fsdp":
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        return get_state_dict(network, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return network.state_dict(), optimizer.state_dict()


def load_states(network: nn.Module, optimizer: torch.optim.Optimizer, strategy: str, states: States) -> None:
    """Take over what `whole_states` has given, in any number of processes. All must call this, each with the whole."""
    weights, moments = states
    if strategy == "fsdp":
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

        options = StateDictOptions(full_state_dict=True)
        set_state_dict(network, optimizer, model_state_dict=weights, optim_state_dict=moments, options=options)
    else:
        network.load_state_dict(weights)
        optimizer.load_state_dict(moments)
