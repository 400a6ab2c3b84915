"""Studies that are read again: `mpitune.load`."""
