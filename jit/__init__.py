"""Machine code: compiled by numba with vectors of fixed width, and kept on disk where no other user can change it.

It knows nothing of the other packages, and this file imports nothing.
"""

LANES = 16  # elements of a vector: what arrays are padded to


def padded(count: int) -> int:
    """`count` rounded up to whole vectors."""
    return -(-count // LANES) * LANES
