"""Run a command as on a processor without AVX-512: python -m tests.avx2 COMMAND...

Each library has a way of its own to be told so. oneDAL, which scikit-learn-intelex uses, has none.
"""

from __future__ import annotations

import os
import sys


def environment() -> dict[str, str]:
    """For PyTorch, oneDNN, MKL, OpenBLAS, numba and numpy."""
    from llvmlite import binding
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    wide = ("avx512", "amx", "avx10")
    host = binding.get_host_cpu_features()
    features = {name: there and not name.startswith(wide) for name, there in host.items()}
    beyond = [name for name in __cpu_dispatch__ if __cpu_features__.get(name) and name.startswith(("X86_V4", "AVX512"))]
    return {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Zen",
        "NUMBA_CPU_NAME": "znver3",
        "NUMBA_CPU_FEATURES": ",".join(f"{'+' if there else '-'}{name}" for name, there in sorted(features.items())),
        "NPY_DISABLE_CPU_FEATURES": " ".join(beyond),
    }


if __name__ == "__main__":
    os.execvpe(sys.argv[1], sys.argv[1:], {**os.environ, **environment()})
