"""Ray Tune's scripts on all devices of all nodes, with Ray installed and never started.

    python -m mpitune script.py            # tuner.fit() of an unchanged script uses all cores or GPUs
    mpirun -n 3 python -m mpitune script.py

Ray's own controller, searchers and schedulers decide on rank 0 (`controller.py`, `schedulers.py`), its own Trainable
evaluates in workers (`stage.py`); `core.py` stands for the rest of Ray.
"""
