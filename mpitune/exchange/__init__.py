"""Studies for other tools."""
