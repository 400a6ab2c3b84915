"""How figures are written."""

import re
from pathlib import Path

from matplotlib.image import imread

from mpitune.figures.plotting import DPI, PNG_DPI, save, subplots


def test_text_is_text_and_pictures_have_two_pixels_for_one(tmp_path: Path) -> None:
    figure, axes = subplots(size=(4, 3))
    axes.set_title("a title that can be found")
    save(figure, tmp_path, "one")
    drawing = (tmp_path / "one.svg").read_text()
    assert re.search(r"<text [^>]*>a title that can be found</text>", drawing) and "DejaVu Sans" in drawing
    assert PNG_DPI == 2 * DPI and imread(tmp_path / "one.png").shape[:2] == (3 * PNG_DPI, 4 * PNG_DPI)
