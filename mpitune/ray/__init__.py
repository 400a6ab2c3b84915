"""Ray Tune's scripts on all devices of all nodes, with Ray installed and never started.

python -m mpitune script.py            # tuner.fit() of an unchanged script uses all cores or GPUs
mpirun -n 3 python -m mpitune script.py
"""
