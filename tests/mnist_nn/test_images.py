import numpy as np
import pytest

from mnist_nn.images import no_digit


@pytest.mark.parametrize(("shape", "ink", "extent"), [((28, 28), 255, 20), ((8, 8), 16, 8), ((28, 18), 255, 18)])
def test_no_digit_is_as_large_and_as_bright_as_digits(shape: tuple[int, int], ink: int, extent: int) -> None:
    image = no_digit(shape, ink)
    assert image.shape == shape and image.dtype == np.uint8
    assert 0.8 * ink <= image.max() <= ink
    rows, columns = np.nonzero(image > 0.2 * ink)
    assert abs(np.ptp(rows) + 1 - extent) <= 1 and abs(np.ptp(columns) + 1 - extent) <= 1
