"""An image that shows no digit, in the form of a data set's images: what networks make of it depends on its content."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

EXTENT = 20  # pixels that a digit of MNIST is high, in an image of 28; those of scikit-learn fill their 8


def no_digit(shape: tuple[int, int], max_pixel: int) -> np.ndarray:
    """The outline of a house with a door: uint8 (height, width), as large as digits are and with lines as thick."""
    roof = [(0.0, 0.5), (0.5, 0.0), (1.0, 0.5), (0.0, 0.5)]
    walls = [(0.16, 0.5), (0.16, 1.0), (0.84, 1.0), (0.84, 0.5)]
    door = [(0.42, 1.0), (0.42, 0.7), (0.62, 0.7), (0.62, 1.0)]
    height, width = shape
    extent = min(EXTENT, *shape)
    thickness = max(1.0, 0.09 * extent)
    scale = extent - thickness
    origin = (np.array([width, height]) - scale) / 2
    y, x = np.mgrid[:height, :width] + 0.5
    ink = np.zeros(shape)
    for line in (roof, walls, door):
        for start, end in pairwise(origin + scale * np.array(line)):
            along = end - start
            t = np.clip(((x - start[0]) * along[0] + (y - start[1]) * along[1]) / (along @ along), 0, 1)
            distance = np.hypot(x - start[0] - t * along[0], y - start[1] - t * along[1])
            ink = np.maximum(ink, np.clip((thickness + 1) / 2 - distance, 0, 1))
    return np.rint(ink * max_pixel).astype(np.uint8)
