"""`Study.optimize` of Optuna on all devices of all nodes.

    python -m mpitune script.py            # study.optimize of an unchanged script uses all cores or GPUs
    mpirun -n 3 python -m mpitune script.py

Or in the script itself:

    import optuna
    from mpitune.optuna import optimize

    study = optuna.create_study()
    optimize(study, lambda trial: trial.suggest_float("x", -1, 1) ** 2, n_trials=100)
"""

from mpitune.optuna.optimizing import optimize as optimize

__all__ = ["optimize"]
