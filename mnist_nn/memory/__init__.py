"""How much memory a training takes, and who may take it now. It trains nothing."""
