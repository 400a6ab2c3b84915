"""`Study.optimize` of Optuna on all devices of all nodes.

python -m mpitune script.py            # study.optimize of an unchanged script uses all cores or GPUs
mpirun -n 3 python -m mpitune script.py

from mpitune.optuna import optimize
optimize(study, objective, n_trials=100)
"""

from mpitune.optuna.optimizing import optimize as optimize

__all__ = ["optimize"]
