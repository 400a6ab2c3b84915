"""Static drawings as SVG text, for readers without JavaScript and for print. Colours come from the page's style.

matplotlib would need a second for what is drawn here, and its colours could not follow a dark screen. All text is
escaped; each drawing has a text that a screen reader says.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

WIDTH = 720


class Drawing:
    """An SVG to draw into; coordinates are pixels from the top left."""

    def __init__(self, height: float, alt: str, width: float = WIDTH):
        self.width, self.height, self._alt = width, height, alt
        self._parts: list[Markup] = []

    def rect(self, x: float, y: float, width: float, height: float, *, css: str, tip: str = "", fill: str = "") -> None:
        style = Markup(' style="fill:{}"').format(fill) if fill else ""
        title = Markup("<title>{}</title>").format(tip) if tip else ""
        self._parts.append(
            Markup('<rect x="{}" y="{}" width="{}" height="{}" class="{}"{}>{}</rect>').format(
                _n(x), _n(y), _n(max(width, 0.3)), _n(max(height, 0.3)), css, style, title
            )
        )

    def line(self, points: Sequence[tuple[float, float]], css: str) -> None:
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self._parts.append(Markup('<polyline points="{}" class="{}"/>').format(path, css))

    def dot(self, x: float, y: float, css: str, *, radius: float = 2.5, tip: str = "") -> None:
        title = Markup("<title>{}</title>").format(tip) if tip else ""
        self._parts.append(
            Markup('<circle cx="{}" cy="{}" r="{}" class="{}">{}</circle>').format(_n(x), _n(y), _n(radius), css, title)
        )

    def text(self, x: float, y: float, text: str, css: str = "", anchor: str = "start") -> None:
        self._parts.append(
            Markup('<text x="{}" y="{}" class="{}" text-anchor="{}">{}</text>').format(_n(x), _n(y), css, anchor, text)
        )

    def image(self, x: float, y: float, width: float, height: float, pixels: np.ndarray) -> None:
        """Add a picture.

        Args:
            x: of its left edge.
            y: of its upper edge.
            width: of the room that it fills.
            height: of that room.
            pixels: uint8 (rows, columns), where 255 is ink.
        """
        self._parts.append(
            Markup('<image x="{}" y="{}" width="{}" height="{}" href="{}" class="pixels"/>').format(
                _n(x), _n(y), _n(width), _n(height), png(255 - pixels)
            )
        )

    def markup(self) -> Markup:
        return Markup('<svg viewBox="0 0 {} {}" style="--width:{}px" role="img" aria-label="{}">{}</svg>').format(
            _n(self.width), _n(self.height), _n(self.width), self._alt, Markup("").join(self._parts)
        )


class Plot(Drawing):
    """A drawing with two axes.

    Args:
        x, y: (low, high), the range shown; a logarithmic axis has both above 0.
        whole: only whole numbers are written at x, such as those of epochs.
    """

    def __init__(
        self,
        alt: str,
        x: tuple[float, float],
        y: tuple[float, float],
        names: tuple[str, str],
        *,
        logs: tuple[bool, bool] = (False, False),
        percent: tuple[bool, bool] = (False, False),
        whole: bool = False,
    ):
        super().__init__(280, alt)
        self._x, self._y, self._logs = _widened(x, logs[0]), _widened(y, logs[1]), logs
        self._box = (62.0, 16.0, self.width - 26, self.height - 44)
        x0, y0, x1, y1 = self._box
        for tick in ticks(*self._x, logs[0], 7):
            if whole and not tick.is_integer():
                continue
            at = self.at(tick, self._y[0])[0]
            self.line([(at, y0), (at, y1)], "grid")
            self.text(at, y1 + 16, words(tick, percent[0]), "tick", "middle")
        for tick in ticks(*self._y, logs[1], 5):
            at = self.at(self._x[0], tick)[1]
            self.line([(x0, at), (x1, at)], "grid")
            self.text(x0 - 6, at + 4, words(tick, percent[1]), "tick", "end")
        self.text((x0 + x1) / 2, self.height - 8, names[0], "axis", "middle")
        self.text(4, 10, names[1], "axis")

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a point; outside it is put on the edge."""
        x0, y0, x1, y1 = self._box
        right, up = _share(x, self._x, self._logs[0]), _share(y, self._y, self._logs[1])
        return x0 + right * (x1 - x0), y1 - up * (y1 - y0)

    def curve(self, x: Sequence[float], y: Sequence[float], css: str) -> None:
        """A line through those points that are finite."""
        points = [self.at(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(a) and math.isfinite(b)]
        self.line(points, f"line {css}")
        for at in points if len(points) <= 60 else ():
            self.dot(*at, css)


def ticks(low: float, high: float, log: bool, most: int) -> list[float]:
    """Round numbers from low to high, about `most` of them."""
    if log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            found = [d * 10.0**p for p in powers for d in digits if low * 0.999 <= d * 10.0**p <= high * 1.001]
            if len(found) <= most:
                break
        return found[:: -(-len(found) // most) or 1] if found else []
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) <= most)
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def words(number: float, percent: bool = False) -> str:
    """A number as people read it."""
    if not math.isfinite(number):
        return "∞" if number > 0 else "-∞" if number < 0 else "none"
    return f"{100 * number:.4g} %" if percent else f"{number:.4g}"


def shade(share: float) -> str:
    """A colour between dark (0) and bright (1) that colour-blind readers tell apart: five stops of viridis."""
    stops = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
    share = min(1.0, max(0.0, share)) * 4
    first = min(3, int(share))
    mixed = (round(a + (b - a) * (share - first)) for a, b in zip(stops[first], stops[first + 1], strict=True))
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def png(pixels: np.ndarray) -> str:
    """A grey image, uint8 (height, width), as a data URI."""
    height, width = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels))

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    content = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    )
    return "data:image/png;base64," + base64.b64encode(content).decode()


def label(text: object, most: int = 28) -> str:
    """A text that fits."""
    text = str(text)
    return text if len(text) <= most else text[: most - 1] + "…"


def _widened(span: tuple[float, float], log: bool) -> tuple[float, float]:
    low, high = span
    if high > low:
        return low, high
    return (low / 2, high * 2) if log else (low - 0.5, high + 0.5)


def _share(value: float, span: tuple[float, float], log: bool) -> float:
    low, high = span
    if log:
        value, low, high = (math.log(max(one, 1e-300)) for one in (value, low, high))
    return min(1.0, max(0.0, (value - low) / (high - low)))


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
