"""Studies for other tools, and results of other tools for a study."""
