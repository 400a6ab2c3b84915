"""What numba needs to compile the project's inner loops: machine code kept on disk, and vectors of fixed width.

It knows nothing of the other packages, and this file imports nothing.
"""

LANES = 16  # elements of a vector: what arrays are padded to


def padded(count: int) -> int:
    """`count` rounded up to whole vectors."""
    return -(-count // LANES) * LANES
