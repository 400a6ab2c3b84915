"""Each kind of figure looks as it did: drawn, and compared with a picture in tests/images.

After a wanted change: python -m pytest tests/test_figure_images.py --mpl-generate-path=tests/images, and look at them.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from mnist_nn.figures import Shown, box_plot, calibration_of, draw_sheet, learning
from mnist_svm.figures import box_plot as grid_box_plot
from mnist_svm.figures import heat_map
from mnist_svm.points import best_point
from mpitune.figures.plotting import DPI, PNG_DPI, STYLE, save, subplots

# Text is drawn a little otherwise by another version of FreeType; a box that moves or changes its colour is far more.
pictured = pytest.mark.mpl_image_compare(baseline_dir="images", style=STYLE, savefig_kwargs={"dpi": 60}, tolerance=8)


def grid(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Errors (folds, gamma, C) with a valley, and a failed fold; gammas; penalties."""
    across = np.abs(np.linspace(-1, 1, n)[:, None] + 0.5 * np.linspace(-1, 1, n))
    errors = 0.02 + 0.3 * across**2 + 0.003 * np.arange(5)[:, None, None]
    errors[2, 0, 0] = np.nan
    return errors, 10 ** np.linspace(-6, -2, n), 10 ** np.linspace(-3, 6, n)


def probabilities(n_networks: int, n_images: int) -> np.ndarray:
    """(n_networks, n_images, 10), the same each time: sure of the image's number modulo ten, more or less."""
    sure = 1 + np.arange(n_networks)[:, None] % 3 + np.arange(n_images) % 4
    logits = np.zeros((n_networks, n_images, 10))
    logits[:, np.arange(n_images), np.arange(n_images) % 10] = sure
    logits[1, :, 3] += 2.5
    return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


def images(n: int, n_networks: int = 5) -> list[Shown]:
    pixels = (np.add.outer(np.arange(8), np.arange(8)) * 16).astype(np.uint8)
    given = probabilities(n_networks, n).swapaxes(0, 1)
    return [Shown(f"i{k}", f"test image {k}: a {k % 7}", pixels, one, k % 7) for k, one in enumerate(given)]


def map_of(n: int) -> Any:
    errors, gammas, penalties = grid(n)
    return heat_map(errors.mean(axis=0), gammas, penalties=penalties, best=best_point(errors))


def boxes_of(n: int) -> Any:
    errors, gammas, penalties = grid(n)
    return grid_box_plot(errors[:, 0], gammas[0], penalties=penalties, limits=(0.02, 0.9), best_gamma=False)


FIGURES: dict[str, Callable[[], Any]] = {
    "heat_map_with_numbers": lambda: map_of(6),
    "heat_map_of_a_fine_grid": lambda: map_of(24),
    "box_plot_of_a_gamma": lambda: boxes_of(12),
    "certainty_of_an_image": lambda: box_plot(images(9)[8], "digit"),
    "sheet_of_the_least_sure": lambda: draw_sheet(images(6)),
    "three_networks_are_points_without_a_box": lambda: draw_sheet(images(2, 3)),
    "learning_curves": lambda: learning([0.9, 0.4, 0.2], [0.5, 0.3, 0.25], [0.8, 0.9, 0.93]),
    "calibration": lambda: calibration_of(
        probabilities(3, 200).mean(axis=0), (np.arange(200) + (np.arange(200) % 9 == 0)) % 10
    ),
}


@pictured
@pytest.mark.parametrize("name", FIGURES)
def test_figure(name: str) -> Any:
    return FIGURES[name]()


def test_text_is_text_and_pictures_have_two_pixels_for_one(tmp_path: Path) -> None:
    figure, axes = subplots(size=(4, 3))
    axes.set_title("a title that can be found")
    save(figure, tmp_path, "one")
    drawing = (tmp_path / "one.svg").read_text()
    assert re.search(r"<text [^>]*>a title that can be found</text>", drawing) and "DejaVu Sans" in drawing
    assert PNG_DPI == 2 * DPI and imread(tmp_path / "one.png").shape[:2] == (3 * PNG_DPI, 4 * PNG_DPI)
