"""Devices of a machine: which there are, what prevents their use, and who uses them."""
