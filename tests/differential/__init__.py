"""Random searches by scikit-learn and by `common.sklearn`, compared: see `python -m tests.differential -h`."""
