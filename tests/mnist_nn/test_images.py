import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from common.data import load
from mnist_nn.images import MAX_PIXELS, Frame, no_digit, read_image
from mpitune.errors import UsageError

MNIST = Frame(28, 28, 255, 20)
DIGITS = Frame(8, 8, 16, 8)


def drawing(height: int = 90, width: int = 120, ink: int = 255, paper: int = 0) -> np.ndarray:
    """A thick L, off the centre."""
    image = np.full((height, width), paper, dtype=np.uint8)
    image[10:50, 15:25] = ink
    image[40:50, 15:40] = ink
    return image


def saved(image: Image.Image, path: Path) -> Path:
    image.save(path)
    return path


def test_the_frame_of_the_digits_is_what_they_fill() -> None:
    assert Frame.of(load("digits", Path())["train_images"], 16) == DIGITS


def test_the_frame_of_mnist_is_what_its_authors_say(mnist: Path) -> None:
    assert Frame.of(load("mnist", mnist)["train_images"], 255) == MNIST


@pytest.mark.parametrize("frame", [MNIST, DIGITS, Frame(28, 20, 255, 18)])
def test_no_digit_uses_the_extent_and_the_brightness_of_the_data(frame: Frame) -> None:
    image = no_digit(frame)
    assert image.shape == (frame.height, frame.width) and image.dtype == np.uint8
    assert 0.8 * frame.max_pixel <= image.max() <= frame.max_pixel
    rows, columns = np.nonzero(image > 0.2 * frame.max_pixel)
    assert abs(np.ptp(rows) + 1 - frame.extent) <= 1 and abs(np.ptp(columns) + 1 - frame.extent) <= 1


@pytest.mark.parametrize("frame", [MNIST, DIGITS])
def test_an_image_is_brought_to_the_size_the_extent_and_the_centre_of_the_data(tmp_path: Path, frame: Frame) -> None:
    image = read_image(saved(Image.fromarray(drawing()), tmp_path / "l.png"), frame)
    assert image.shape == (frame.height, frame.width) and image.dtype == np.uint8 and image.max() == frame.max_pixel
    rows, columns = np.nonzero(image)
    assert np.ptp(rows) + 1 == frame.extent
    if frame is MNIST:  # in the digits' frame there is no room to move it
        weights = image[rows, columns]
        assert np.average(rows, weights=weights) == pytest.approx(13.5, abs=0.5)
        assert np.average(columns, weights=weights) == pytest.approx(13.5, abs=0.5)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F"])
def test_every_mode_gives_the_same_image(tmp_path: Path, mode: str) -> None:
    grey = Image.fromarray(drawing())
    expected = read_image(saved(grey, tmp_path / "l.png"), MNIST)
    if mode == "I;16":
        image = Image.fromarray(drawing().astype(np.uint16) * 257)
    elif mode == "LA":
        image = Image.merge("LA", (grey, Image.new("L", grey.size, 255)))
    else:
        image = (grey.convert("RGB") if mode in ("CMYK", "RGBA") else grey).convert(mode)
    path = saved(image, tmp_path / ("image.tiff" if mode in ("CMYK", "F") else "image.png"))
    assert np.array_equal(read_image(path, MNIST), expected)


def test_ink_on_paper_or_on_nothing_or_held_sideways_is_the_same_drawing(tmp_path: Path) -> None:
    """On nothing it is seen whatever its colour; a camera says how it was held."""
    drawn = Image.fromarray(drawing())
    expected = read_image(saved(drawn, tmp_path / "dark.png"), MNIST)
    clear = [Image.merge("LA", (Image.new("L", drawn.size, ink), drawn)) for ink in (0, 255)]
    for image in (Image.fromarray(drawing(ink=40, paper=200)), *clear):
        assert np.array_equal(read_image(saved(image, tmp_path / "other.png"), MNIST), expected)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned clockwise
    Image.fromarray(np.rot90(drawing()).copy()).save(tmp_path / "sideways.png", exif=exif)
    assert np.array_equal(read_image(tmp_path / "sideways.png", MNIST), expected)


def test_an_image_of_the_data_comes_back_as_it_is(tmp_path: Path) -> None:
    image = load("digits", Path())["test_images"][4]
    assert image[0, 0] == 0 and image.max() == 16
    assert np.array_equal(read_image(saved(Image.fromarray(image * 15), tmp_path / "4.png"), DIGITS), image)


def test_a_blank_image_is_blank(tmp_path: Path) -> None:
    assert not read_image(saved(Image.new("RGB", (50, 60), "white"), tmp_path / "blank.png"), MNIST).any()


@pytest.mark.parametrize("shape", [(1, 1), (1, 400), (400, 1)])
def test_images_of_one_pixel_or_line(tmp_path: Path, shape: tuple[int, int]) -> None:
    pixels = np.zeros(shape, dtype=np.uint8)
    pixels[-1, -1] = 255
    image = read_image(saved(Image.fromarray(pixels), tmp_path / "line.png"), MNIST)
    assert image.shape == (28, 28)


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def test_an_image_that_is_too_large_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    side = int(MAX_PIXELS**0.5) + 1
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(bytes(1000)))
    (tmp_path / "bomb.png").write_bytes(bomb + png_chunk(b"IEND", b""))
    with pytest.raises(UsageError, match=r"bomb\.png is too large: give one of at most 50 million pixels"):
        read_image(tmp_path / "bomb.png", MNIST)


def test_files_that_are_no_images_are_refused_by_name(tmp_path: Path) -> None:
    whole = saved(Image.fromarray(drawing()), tmp_path / "whole.png").read_bytes()
    contents = {"empty": b"", "text": b"a seven", "cut": whole[: len(whole) // 2], "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=f"{name} is not a readable image"):
            read_image(tmp_path / name, MNIST)
    with pytest.raises(UsageError, match="absent does not exist"):
        read_image(tmp_path / "absent", MNIST)
    with pytest.raises(UsageError, match="is not a file"):
        read_image(tmp_path, MNIST)


def test_the_grain_of_the_paper_is_not_drawn(tmp_path: Path) -> None:
    grain = np.random.default_rng(0).integers(-8, 9, (90, 120))
    noisy = Image.fromarray((drawing(ink=40, paper=220) + grain).astype(np.uint8))
    clean = read_image(saved(Image.fromarray(drawing()), tmp_path / "clean.png"), MNIST)
    image = read_image(saved(noisy, tmp_path / "noisy.png"), MNIST)
    assert np.array_equal(image > 0, clean > 0) and np.abs(image.astype(int) - clean).max() < 40
