"""Studies for other tools: `mpitune.load` for pandas and NumPy, `python -m mpitune export RESULTS --to TOOL`."""
