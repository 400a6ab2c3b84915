"""The engine and what experiments share. It imports neither of the two programs; everybody else may import it."""
