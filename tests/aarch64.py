"""Compile for aarch64 what numba has compiled for this processor: python -m tests.aarch64 PROCESSOR...

The functions are run here first, so that numba compiles them; their LLVM code is then given another target. Prints a
line for each processor. NUMBA_CACHE_DIR must be an empty folder, since numba cannot show what it reads from a cache,
and NUMBA_OPT must be 0, since LLVM's optimisation for this processor leaves instructions that only it has.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import numpy as np

TRIPLE = "aarch64-unknown-linux-gnu"


def compiled_functions() -> dict[tuple[str, str], Any]:
    """Functions of numba in modules that are imported, by module and name, which have been compiled for something."""
    from numba.core.dispatcher import Dispatcher

    compiled = {}
    for module_name, module in list(sys.modules.items()):
        for name, value in list(vars(module).items()):
            own = isinstance(value, Dispatcher) and value.py_func.__module__ == module_name
            if own and value.overloads and not module_name.startswith("numba"):
                compiled[module_name, name] = value
    return compiled


def run_everything() -> None:
    """A step of the search of networks, a fit of an SVM and its predictions."""
    import torch

    from mnist_nn.steps.choose import warm_up
    from mpitune.svm import SVC

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # else other processes would compile parts of the solver
    torch.set_num_threads(1)
    warm_up((28, 28), 10, "manual", 10)
    images = np.random.default_rng(0).normal(size=(60, 5))
    SVC(C=1.0, gamma=0.1).fit(images, np.arange(60) % 3).predict(images)


def main(processors: list[str]) -> None:
    from llvmlite import binding

    run_everything()
    functions = {key: list(function.inspect_llvm().values()) for key, function in compiled_functions().items()}
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    for processor in processors:
        machine = binding.Target.from_triple(TRIPLE).create_target_machine(cpu=processor, opt=3, reloc="pic")
        n_bytes, fused = 0, 0
        for name, codes in functions.items():
            for code in codes:
                module = binding.parse_assembly(re.sub(r"^target (triple|datalayout) = .*$", "", code, flags=re.M))
                module.triple, module.data_layout = TRIPLE, str(machine.target_data)
                builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=3))
                builder.getModulePassManager().run(module, builder)
                assembly = machine.emit_assembly(module)
                assert "zmm" not in assembly and "ret" in assembly, name
                n_bytes, fused = n_bytes + len(assembly), fused + assembly.count("fmla")
        print(f"{processor}: {len(functions)} functions, {n_bytes} bytes of assembly, {fused} fused products")


if __name__ == "__main__":
    main(sys.argv[1:])
