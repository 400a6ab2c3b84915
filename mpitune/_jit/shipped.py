"""Machine code that an image carries, so that a job does not compile on every node.

    python -m mpitune._jit.shipped FOLDER mpitune.svm:warm_up mnist_nn.warm:warm_up

compiles what these functions use, for each of LEVELS, into FOLDER. numba keeps machine code by the processor's name and
features, so that code is for levels of the x86-64 ABI instead, and a program that finds it says it runs on such a one.
Images set SEARCH_COMPILED to FOLDER; `set_cache_variables` then calls `use`.
"""

from __future__ import annotations

import os
import pickle
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

VARIABLE = "SEARCH_COMPILED"
V3 = ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")  # as /proc/cpuinfo names them
V4 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
LEVELS: Mapping[str, tuple[str, ...]] = {"x86-64-v4": (*V3, *V4), "x86-64-v3": V3}  # the first that a processor has
OTHER_NAMES = {"bmi1": "bmi"}  # of LLVM


def level_here(cpuinfo: str | None = None) -> str:
    """The highest of LEVELS that this processor has, "" for none.

    Args:
        cpuinfo: Text of /proc/cpuinfo, of another machine in tests.
    """
    if cpuinfo is None:
        try:
            cpuinfo = Path("/proc/cpuinfo").read_text()
        except OSError:
            return ""
    has = set(next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "").split())
    return next((level for level, flags in LEVELS.items() if has.issuperset(flags)), "")


def variables(level: str) -> dict[str, str]:
    """What numba is to be told for a level."""
    features = ",".join(f"+{OTHER_NAMES.get(flag, flag)}" for flag in LEVELS[level])
    return {"NUMBA_CPU_NAME": level, "NUMBA_CPU_FEATURES": features}


def use(cache: Path) -> bool:
    """Put the image's machine code for this processor into numba's cache folder; False where there is none.

    Call it before numba is imported. A user who can change the image can change the programs in it, so its folder is
    trusted. Files are copied, since numba takes no folder that it cannot write; those that are there stay.
    """
    shipped = os.environ.get(VARIABLE, "")
    level = level_here() if shipped and "NUMBA_CPU_NAME" not in os.environ else ""
    source = Path(shipped, level)
    if not level or not source.is_dir():
        return False
    # An index (.nbi) after the code (.nbc) that it names.
    for path in sorted(source.rglob("*.nb?"), key=lambda path: path.suffix):
        target = cache / path.relative_to(source)
        if not target.exists():
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = target.with_name(f"{target.name}.{os.getpid()}")
            shutil.copyfile(path, part)
            os.replace(part, target)
    os.environ.update(variables(level))
    return True


def functions() -> dict[tuple[str, str], Any]:
    """Functions of numba in modules that are imported, by module and name, which have been compiled for something."""
    from numba.core.dispatcher import Dispatcher

    compiled = {}
    for module_name, module in list(sys.modules.items()):
        for name, value in list(vars(module).items()):
            own = isinstance(value, Dispatcher) and value.py_func.__module__ == module_name
            if own and value.overloads and not module_name.startswith("numba"):
                compiled[module_name, name] = value
    return compiled


def main(folder: str, *warm_ups: str) -> None:
    """Run each of `warm_ups`, "module:function", then compile the same signatures for each level."""
    if platform.machine() != "x86_64":
        print("nothing is compiled ahead: levels are known for x86-64 only")
        return
    with tempfile.TemporaryDirectory() as own:
        os.environ["NUMBA_CACHE_DIR"] = own
        for name in warm_ups:
            module, _, function = name.partition(":")
            getattr(import_module(module), function)()
    wanted = pickle.dumps([(*key, function.signatures) for key, function in functions().items()])
    for level in LEVELS:
        cache = Path(folder, level)
        cache.mkdir(mode=0o755, parents=True)
        environ = {**os.environ, **variables(level), "NUMBA_CACHE_DIR": str(cache.resolve())}
        command = [sys.executable, "-c", "from mpitune._jit.shipped import compile_here; compile_here()"]
        subprocess.run(command, input=wanted, env=environ, check=True)
        n_bytes = sum(path.stat().st_size for path in cache.rglob("*.nbc"))
        print(f"{level}: {len(pickle.loads(wanted))} functions, {n_bytes >> 10} KiB")


def compile_here() -> None:
    """Compile the (module, name, signatures) that stdin holds pickled; nothing is run, so any processor will do."""
    for module, name, signatures in pickle.load(sys.stdin.buffer):
        for signature in signatures:
            getattr(import_module(module), name).compile(signature)


if __name__ == "__main__":
    main(*sys.argv[1:])
