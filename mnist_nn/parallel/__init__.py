"""Data-parallel training of one network: torch's own processes, not the engine's workers."""
