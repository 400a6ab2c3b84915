"""How shared matrices lie in memory. Nothing here imports numba, so a rank may ask before any worker runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpitune._jit import padded

HEADER = 1 << 16  # bytes before a shared matrix: what it holds, when it was last taken, an agreement, a flag per strip
DISTANCES = "distances"


def buffer_sizes(class_sizes: Sequence[int] | np.ndarray, n_kernels: int) -> dict[str, int]:
    """Bytes of the buffers that workers of one node can share, the most important first, by name.

    Args:
        class_sizes: number of samples of each class.
        n_kernels: how many kernel matrices K - 1 to provide, beside the one of squared distances.

    Returns:
        Sizes of "kernel 0", "kernel 1", ... and "distances": each holds a HEADER and a float32 matrix (width, width),
        where the width is the sum of the padded class sizes.
    """
    width = sum(padded(int(size)) for size in class_sizes)
    names = [*(f"kernel {number}" for number in range(n_kernels)), DISTANCES]
    return dict.fromkeys(names, HEADER + 4 * width * width)
