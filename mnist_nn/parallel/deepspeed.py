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
    "fp16.loss_scale": {0: {}},
    "gradient_accumulation_steps": {1: {}},
    "gradient_clipping": {0: {}},
}
# The option that takes the value of an entry; of two entries for one option, the later one here wins, as there.
NAMES = {
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
# What follows from the others, how DeepSpeed moves data, and what it says: no result depends on it.
UNUSED = {
    "wall_clock_breakdown", "dump_state", "zero_allow_untested_optimizer",
    *(f"zero_optimization.{name}" for name in (
        "allgather_partitions", "allgather_bucket_size", "overlap_comm", "reduce_scatter", "reduce_bucket_size",
        "contiguous_gradients", "round_robin_gradients",
    )),
}  # fmt: skip


def options_of(content: Mapping[str, Any]) -> tuple[Options, list[str]]:
    """The options that an object stands for, whose entries may be DeepSpeed's; and those that are not used.

    Entries that are no objects and have no name of DeepSpeed's are options of ours. "auto" counts as not given.
    Raises UsageError for what DeepSpeed would do and this program does not.
    """
    entries = dict(_flat({name: value for name, value in content.items() if not _is_off(value)}))
    ours = {
        name: value for name, value in entries.items() if "." not in name and name not in {*VALUES, *NAMES, *UNUSED}
    }
    theirs = {name: value for name, value in entries.items() if name not in ours and value not in ("auto", None)}
    options: Options = {}
    for name, values in VALUES.items():
        if name in theirs:
            value = theirs.pop(name)
            value = value.lower() if isinstance(value, str) else value
            if isinstance(value, list) or value not in values:
                known = " or ".join(json.dumps(each) for each in values)
                raise UsageError(f"{name} is {json.dumps(entries[name])}: only {known} can be done here")
            options |= values[value]
    if all(entries.get(f"{kind}.enabled") is True for kind in ("bf16", "fp16")):
        raise UsageError("bf16 and fp16 are enabled: enable one of them")
    for name in ("warmup_max_lr", "total_num_steps") if options.get("schedule") == "linear" else ():
        if f"scheduler.params.{name}" not in theirs:
            raise UsageError(f"scheduler.params.{name} is missing: give it")
    options |= {option: theirs.pop(name) for name, option in NAMES.items() if name in theirs}
    if "total-batch-size" in options and "batch-size" not in options:
        raise UsageError("train_batch_size is of all processes: give train_micro_batch_size_per_gpu, too")
    if other := sorted(theirs.keys() - UNUSED):
        raise UsageError(f"{other[0]} has no counterpart here: take it out")
    if "steps_per_print" in entries:
        options["print-steps"] = True
    return {**options, **ours}, sorted(theirs)


def _is_off(section: Any) -> bool:
    """Whether DeepSpeed does not read what else is in a section."""
    return isinstance(section, dict) and section.get("enabled") is False


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of nested objects, as optimizer.params.lr."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
