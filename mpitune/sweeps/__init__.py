"""Sweep files of Weights & Biases, and the programs that they name: `python -m mpitune run sweep.yaml`."""
