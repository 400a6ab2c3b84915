"""Machine code: compiled by numba with vectors of fixed width, and kept on disk where no other user can change it.

It knows nothing of the other packages, and this file imports nothing but a little of the standard library.
"""

import os
from pathlib import Path

WIDE = 16  # elements that arrays are padded to: whole vectors on every processor, and a cache line of float32


def lanes() -> int:
    """Elements of a vector: 16 with AVX-512, whose 32 registers hold 8 doubles; 8 with AVX2 and others, of 4 and less.

    Of a processor that NUMBA_CPU_NAME names instead of this one NUMBA_CPU_FEATURES tells.
    """
    if os.environ.get("NUMBA_CPU_NAME"):
        return 16 if "+avx512f" in os.environ.get("NUMBA_CPU_FEATURES", "").split(",") else 8
    try:
        return 16 if " avx512f " in Path("/proc/cpuinfo").read_text() else 8
    except OSError:
        return 8


LANES = lanes()


def padded(count: int) -> int:
    """`count` rounded up to WIDE."""
    return -(-count // WIDE) * WIDE
