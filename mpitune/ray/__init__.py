"""Ray Tune's scripts on all devices of all nodes, with Ray installed and never started.

    python -m mpitune script.py            # tuner.fit() of an unchanged script uses all cores or GPUs
    mpirun -n 3 python -m mpitune script.py

Ray's own controller, searchers and schedulers propose and decide, on rank 0, in an order that is the same on any layout
(`controller.py`, `schedulers.py`). Ray's own Trainable evaluates, in our workers (`stage.py`). `core.py` stands for the
rest of Ray.
"""
