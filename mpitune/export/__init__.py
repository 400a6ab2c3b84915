"""Studies for other tools: `common.load` for pandas and NumPy, `python -m common.export RESULTS --to TOOL`."""
