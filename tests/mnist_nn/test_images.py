from pathlib import Path

import numpy as np
import pytest

from common.data import load
from mnist_nn.images import extent_of, no_digit


def test_the_extent_of_mnist_is_what_its_authors_say(mnist: Path) -> None:
    assert extent_of(load("mnist", mnist)["train_images"], 255) == 20
    assert extent_of(load("digits", Path())["train_images"], 16) == 8


@pytest.mark.parametrize(("shape", "ink", "extent"), [((28, 28), 255, 20), ((8, 8), 16, 8), ((28, 20), 255, 18)])
def test_no_digit_uses_the_extent_and_the_brightness_of_the_data(shape: tuple[int, int], ink: int, extent: int) -> None:
    images = np.zeros((3, *shape), np.uint8)
    images[:, :extent, :extent] = ink
    image = no_digit(images, ink)
    assert image.shape == shape and image.dtype == np.uint8
    assert 0.8 * ink <= image.max() <= ink
    rows, columns = np.nonzero(image > 0.2 * ink)
    assert abs(np.ptp(rows) + 1 - extent) <= 1 and abs(np.ptp(columns) + 1 - extent) <= 1
