"""Measurements, each a program: `python -m benchmarks.NAME --help`.

OpenBLAS, with which numpy and others multiply, takes from the environment for which processor it computes. For all
sides of a measurement it looks at the processor itself, unless `tests.avx2` names an older one for all libraries.
"""

import os

OPENBLAS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
if "ATEN_CPU_CAPABILITY" not in os.environ:  # which `tests.avx2` sets
    for name in OPENBLAS:  # before numpy is imported, here or in a process that is started
        os.environ.pop(name, None)
