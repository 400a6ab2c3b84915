"""python -m common.accelerate script.py ARGS: somebody's scikit-learn script, unchanged, on all devices.

GridSearchCV, RandomizedSearchCV, their halving relatives and SVC mean this package's while it runs. Under mpirun or
srun rank 0 runs the script and the others take part in its searches, so it prints and writes once.
"""
