"""`fmin` of hyperopt on all devices of all nodes.

    python -m mpitune script.py            # fmin of an unchanged script uses all cores or GPUs
    mpirun -n 3 python -m mpitune script.py

Or in the script itself: `from mpitune.hyperopt import fmin`.
"""

from mpitune.hyperopt.minimizing import fmin as fmin

__all__ = ["fmin"]
