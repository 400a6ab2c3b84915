"""Images from outside the data set: the user's own, and one that shows no digit.

Both are brought into the data set's form, bright on dark, of its size and its usual extent, so that what
a network makes of them depends on their content.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from mpitune.errors import UsageError

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
MAX_PIXELS = 50_000_000
INK = 0.2  # of the full contrast: fainter pixels, such as the grain of paper, do not count as drawn


@dataclass(frozen=True)
class Frame:
    """The form of a data set's images.

    Attributes:
        height, width: in pixels.
        max_pixel: value of a fully inked pixel.
        extent: longer side of the box around what is drawn, in pixels (20 of 28 in MNIST).
    """

    height: int
    width: int
    max_pixel: int
    extent: int

    @classmethod
    def of(cls, images: np.ndarray, max_pixel: int) -> Frame:
        """The frame of uint8 images (n, height, width); the extent is the median over at most 1,000 of them."""
        drawn = images[:1000] > INK * max_pixel
        extents = np.maximum(_span(drawn, axis=1), _span(drawn, axis=2))
        height, width = images.shape[1:]
        return cls(height, width, max_pixel, int(np.clip(np.median(extents), 1, min(height, width))))


def no_digit(frame: Frame) -> np.ndarray:
    """The outline of a house with a door: uint8 (height, width), lines about as thick as those of MNIST."""
    roof = [(0.0, 0.5), (0.5, 0.0), (1.0, 0.5), (0.0, 0.5)]
    walls = [(0.16, 0.5), (0.16, 1.0), (0.84, 1.0), (0.84, 0.5)]
    door = [(0.42, 1.0), (0.42, 0.7), (0.62, 0.7), (0.62, 1.0)]
    thickness = max(1.0, 0.09 * frame.extent)
    scale = frame.extent - thickness
    origin = (np.array([frame.width, frame.height]) - scale) / 2
    y, x = np.mgrid[: frame.height, : frame.width] + 0.5
    ink = np.zeros((frame.height, frame.width))
    for line in (roof, walls, door):
        for start, end in pairwise(np.array(line)):
            distance = _distance(x, y, origin + scale * start, origin + scale * end)
            ink = np.maximum(ink, np.clip((thickness + 1) / 2 - distance, 0, 1))
    return np.rint(ink * frame.max_pixel).astype(np.uint8)


def read_image(path: Path, frame: Frame) -> np.ndarray:
    """The user's image in the form of the data set: uint8 (height, width).

    Any mode becomes grey; a bright background is inverted; what is drawn is scaled to the data's extent,
    its brightest pixel to the largest value, and its centre of mass put at the centre, as for MNIST (Y. LeCun,
    "The MNIST database of handwritten digits"). An image of the data's size on a dark background is only scaled
    in brightness.

    Raises:
        UsageError: the file is no image, damaged, or above 50 million pixels; it is named.
    """
    grey = _grey(path)
    border = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
    background, low, high = np.median(border), grey.min(), grey.max()
    bright = background > (low + high) / 2
    ink = np.clip(background - grey if bright else grey - background, 0, None)
    if ink.max() > 0:
        ink /= ink.max()
        if bright or ink.shape != (frame.height, frame.width):
            ink = _centred(ink, frame)
    else:
        ink = np.zeros((frame.height, frame.width))
    return np.rint(ink * frame.max_pixel).astype(np.uint8)


def _grey(path: Path) -> np.ndarray:
    """float64 (height, width) in the file's own units, transparent parts in contrast with the rest."""
    from PIL import Image, ImageOps

    if not path.is_file():
        raise UsageError(f"image {path} {'is not a file' if path.exists() else 'does not exist'}: name an image file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the size, which is judged here, and about odd metadata
            with Image.open(path, formats=FORMATS) as file:
                if file.width * file.height > MAX_PIXELS:
                    raise Image.DecompressionBombError(f"it has {file.width} x {file.height} pixels")
                image = ImageOps.exif_transpose(file)
            if image.mode in ("I", "F") or image.mode.startswith("I;"):
                return np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0.0, neginf=0.0)
            bands = image.convert("RGBA").convert("LA").split()
    except Image.DecompressionBombError as error:
        limit = f"{MAX_PIXELS // 10**6} million pixels"
        raise UsageError(f"image {path} is too large: give one of at most {limit}") from error
    except Exception as error:  # decoders raise all kinds of errors on damaged files, and the fix is the same
        raise UsageError(f"{path} is not a readable image: give a file of {', '.join(FORMATS)}") from error
    levels, alpha = (np.asarray(band, dtype=np.float64) for band in bands)
    alpha /= 255
    backdrop = 255 if (levels * alpha).sum() < 127.5 * alpha.sum() else 0
    return levels * alpha + backdrop * (1 - alpha)


def _centred(ink: np.ndarray, frame: Frame) -> np.ndarray:
    """Ink of any shape, in 0..1, scaled to the extent of the frame and centred in it by its mass."""
    from PIL import Image

    drawn = ink > INK
    rows, columns = (np.flatnonzero(drawn.any(axis=axis)) for axis in (1, 0))
    box = np.where(drawn, ink, 0)[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height, width = (max(1, round(side * frame.extent / max(box.shape))) for side in box.shape)
    small = Image.fromarray(box.astype(np.float32)).resize((width, height), Image.Resampling.BILINEAR)
    part = np.clip(np.asarray(small, dtype=np.float64), 0, None)
    part /= part.max()
    y, x = np.mgrid[:height, :width] + 0.5
    top = _corner(frame.height, height, (part * y).sum() / part.sum())
    left = _corner(frame.width, width, (part * x).sum() / part.sum())
    whole = np.zeros((frame.height, frame.width))
    whole[top : top + height, left : left + width] = part
    return whole


def _corner(outer: int, inner: int, centre: float) -> int:
    """The first of `inner` pixels whose `centre` lies in the middle of `outer`, as far as they fit."""
    return int(np.clip(round(outer / 2 - centre), 0, outer - inner))


def _span(drawn: np.ndarray, axis: int) -> np.ndarray:
    """(n,): across all of `axis` of (n, height, width), from the first to the last drawn pixel, 0 where none is."""
    marked = np.asarray(drawn.any(axis=axis))  # (n, width) for axis 1, (n, height) for axis 2
    first, last = marked.argmax(axis=1), marked.shape[1] - marked[:, ::-1].argmax(axis=1)
    return np.where(marked.any(axis=1), last - first, 0)


def _distance(x: np.ndarray, y: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Distance of points (x, y) from the line segment between two points."""
    along = end - start
    t = np.clip(((x - start[0]) * along[0] + (y - start[1]) * along[1]) / (along @ along), 0, 1)
    return np.hypot(x - start[0] - t * along[0], y - start[1] - t * along[1])
