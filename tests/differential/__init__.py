"""Random searches by scikit-learn and by `mpitune.sklearn`, compared: see `python -m tests.differential -h`."""
