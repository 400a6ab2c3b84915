"""A configuration file of DeepSpeed as options of `mnist_nn.ddp`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from mpitune.errors import UsageError

Options = dict[str, Any]
_ADAMW = {"optimizer": "adamw", "lr": 0.001, "weight-decay": 0}  # where the file says nothing, DeepSpeed takes these
_WARMUP = {"lr": 0.001, "warmup-steps": 1000, "warmup-type": "log"}
# The options that the value of an entry stands for; what is not here has no counterpart.
VALUES: dict[str, dict[Any, Options]] = {
    "optimizer.type": {"adamw": _ADAMW, "adam": _ADAMW, "sgd": {"optimizer": "sgd", "lr": 0.001, "momentum": 0}},
    "scheduler.type": {"warmupdecaylr": {**_WARMUP, "schedule": "linear"}, "warmuplr": _WARMUP},
    "scheduler.params.warmup_min_lr": {0: {}},
    "zero_optimization.stage": {0: {}, 1: {"strategy": "zero1"}},
    "bf16.enabled": {True: {"amp": "bf16"}},
    "fp16.enabled": {True: {"amp": "fp16"}},
    **{name: {value: {}} for name, value in {  # what DeepSpeed does where the file says nothing
        "gradient_accumulation_steps": 1, "gradient_clipping": 0, "gradient_predivide_factor": 1,
        "communication_data_type": "fp32", "optimizer.params.adam_w_mode": True,
        "optimizer.params.bias_correction": True, "scheduler.params.last_batch_iteration": -1, "fp16.loss_scale": 0,
        "fp16.initial_scale_power": 16, "fp16.loss_scale_window": 1000, "fp16.hysteresis": 2, "fp16.min_loss_scale": 1,
    }.items()},
}  # fmt: skip
# The option that takes the value of an entry; of two entries for one option, the later one here wins, as there.
OPTION_NAMES = {
    "train_micro_batch_size_per_gpu": "batch-size",
    "train_batch_size": "total-batch-size",
    "steps_per_print": "log-interval",
    **{f"optimizer.params.{name}": name for name in ("lr", "betas", "eps", "momentum")},
    "optimizer.params.weight_decay": "weight-decay",
    "scheduler.params.warmup_max_lr": "lr",
    "scheduler.params.warmup_num_steps": "warmup-steps",
    "scheduler.params.warmup_type": "warmup-type",
    "scheduler.params.total_num_steps": "total-steps",
}  # fmt: skip
# Beginnings of entries on which no result depends: what follows from others, how DeepSpeed moves data, what only stages
# that are refused read, and what it says.
UNUSED = (
    "wall_clock_breakdown", "memory_breakdown", "dump_state", "zero_allow_untested_optimizer",
    *(f"optimizer.params.{name}" for name in ("torch_adam", "set_grad_none", "fused", "foreach")),
    *(f"zero_optimization.{name}" for name in (
        "allgather_", "overlap_comm", "reduce_", "contiguous_gradients", "round_robin_gradients",
        "ignore_unused_parameters", "stage3_", "sub_group_size",
    )),
)  # fmt: skip
OFF: tuple[Any, ...] = (False, 0, "", "none", [])
# Sections that are off unless they say "enabled": true.
SWITCHED = {
    "fp16", "bf16", "amp", "torch_autocast", "autotuning", "flops_profiler", "data_efficiency", "curriculum_learning",
    "elasticity", "tensorboard", "wandb", "comet", "csv_monitor", "comms_logger",
}  # fmt: skip


def options_of(content: Mapping[str, Any]) -> tuple[Options, list[str]]:
    """The options that an object stands for, whose entries may be DeepSpeed's; and those that are not used.

    Entries that are no objects and have no name of DeepSpeed's are options of ours. "auto" counts as not given.
    What is not known here asks for nothing where it is false, 0, or "none".
    Raises UsageError for what DeepSpeed would do and this program does not.
    """
    entries = dict(_flat(content))
    own = {name: value for name, value in entries.items() if "." not in name and not _is_known(name)}
    foreign = {name: value for name, value in entries.items() if name not in own and value not in ("auto", None)}
    options: Options = {}
    for name, values in VALUES.items():
        if name in foreign:
            value = foreign.pop(name)
            value = value.lower() if isinstance(value, str) else value
            if isinstance(value, list) or value not in values:
                known = " or ".join(json.dumps(each) for each in values)
                raise UsageError(f"{name} is {json.dumps(entries[name])}: only {known} can be done here")
            options |= values[value]
    if all(entries.get(f"{kind}.enabled") is True for kind in ("bf16", "fp16")):
        raise UsageError("bf16 and fp16 are enabled: enable one of them")
    for name in ("warmup_max_lr", "total_num_steps") if options.get("schedule") == "linear" else ():
        if f"scheduler.params.{name}" not in foreign:
            raise UsageError(f"scheduler.params.{name} is missing: give it")
    options |= {option: foreign.pop(name) for name, option in OPTION_NAMES.items() if name in foreign}
    if "total-batch-size" in options and "batch-size" not in options:
        raise UsageError("train_batch_size is of all processes: give train_micro_batch_size_per_gpu, too")
    if other := sorted(name for name, value in foreign.items() if value not in OFF and not _is_known(name)):
        raise UsageError(f"{other[0]} has no counterpart here: take it out")
    if "log-interval" in options:
        options["print-steps"] = True
    return {**options, **own}, sorted(foreign)


def _is_known(name: str) -> bool:
    return name in VALUES or name in OPTION_NAMES or name.startswith(UNUSED)


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of nested objects that are not off, as optimizer.params.lr."""
    for name, value in content.items():
        if not isinstance(value, dict):
            yield prefix + name, value
        elif value.get("enabled", name not in SWITCHED) is not False and value.get("device") != "none":
            yield from _flat(value, f"{prefix}{name}.")
