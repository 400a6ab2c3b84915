"""An image that shows no digit, in the form of a data set's images: what networks make of it depends on its content."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

INK = 0.2  # of the full contrast: fainter pixels do not count as drawn


def no_digit(images: np.ndarray, max_pixel: int) -> np.ndarray:
    """The outline of a house with a door: uint8 (height, width), as large as what `images` show, its lines as thick."""
    roof = [(0.0, 0.5), (0.5, 0.0), (1.0, 0.5), (0.0, 0.5)]
    walls = [(0.16, 0.5), (0.16, 1.0), (0.84, 1.0), (0.84, 0.5)]
    door = [(0.42, 1.0), (0.42, 0.7), (0.62, 0.7), (0.62, 1.0)]
    height, width = images.shape[1:]
    extent = extent_of(images, max_pixel)
    thickness = max(1.0, 0.09 * extent)
    scale = extent - thickness
    origin = (np.array([width, height]) - scale) / 2
    y, x = np.mgrid[:height, :width] + 0.5
    ink = np.zeros((height, width))
    for line in (roof, walls, door):
        for start, end in pairwise(np.array(line)):
            distance = _distance(x, y, origin + scale * start, origin + scale * end)
            ink = np.maximum(ink, np.clip((thickness + 1) / 2 - distance, 0, 1))
    return np.rint(ink * max_pixel).astype(np.uint8)


def extent_of(images: np.ndarray, max_pixel: int) -> int:
    """Longer side of the box around what is drawn, in pixels: the median over at most 1,000 images (20 in MNIST)."""
    drawn: np.ndarray = images[:1000] > INK * max_pixel
    extents = np.maximum(_span(np.asarray(drawn.any(axis=1))), _span(np.asarray(drawn.any(axis=2))))
    return int(np.clip(np.median(extents), 1, min(images.shape[1:])))


def _span(marked: np.ndarray) -> np.ndarray:
    """(n,): from the first to the last True of each row, 0 where none is."""
    first, last = marked.argmax(axis=1), marked.shape[1] - marked[:, ::-1].argmax(axis=1)
    return np.where(marked.any(axis=1), last - first, 0)


def _distance(x: np.ndarray, y: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Distance of points (x, y) from the line segment between two points."""
    along = end - start
    t = np.clip(((x - start[0]) * along[0] + (y - start[1]) * along[1]) / (along @ along), 0, 1)
    return np.hypot(x - start[0] - t * along[0], y - start[1] - t * along[1])
