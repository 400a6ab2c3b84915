"""Devices of a machine: which there are, who uses them, whether code for them can be trusted, how fast it is there."""
