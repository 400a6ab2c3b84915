"""Calls of the tests of joblib. Workers import this file, which is light, and not those of tests."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers import wait_until


def pid_beside_another(folder: Path) -> int:
    """This process, once there is another one that makes such calls."""
    folder.mkdir(exist_ok=True)
    (folder / str(os.getpid())).touch()
    wait_until(lambda: len(list(folder.iterdir())) == 2)
    return os.getpid()


class Stubborn(Exception):
    """Its arguments are not those that it keeps."""

    def __init__(self, one: Any, two: Any) -> None:
        super().__init__(one)


def raise_stubborn() -> None:
    raise Stubborn("one", "two")


def seen(array: np.ndarray) -> tuple[float, bool, bool, int]:
    """What a worker sees of an array: its sum, flags, and the file in memory that it is of, 0 for none."""
    address = array.__array_interface__["data"][0]
    with open("/proc/self/maps") as lines:
        spans = [(line, *(int(part, 16) for part in line.split()[0].split("-"))) for line in lines if "memfd" in line]
    places = [line.split()[0] for line, begin, end in spans if begin <= address < end]
    (inode,) = {os.stat(f"/proc/self/map_files/{place}").st_ino for place in places} or {0}
    return float(array.sum()), array.flags.writeable, np.isfortran(array), inode


def write(array: np.ndarray) -> float:
    array[0] += 1
    return float(array[0])


def write_number(out: np.ndarray, place: int) -> None:
    out[place] = place


def say(number: int) -> None:
    print(f"line {number}")
    print(f"error {number}\n\n", file=sys.stderr, end="")
    print(f"\rbar {number}\rlast {number}", file=sys.stderr)
    warnings.warn(f"warning {number}", stacklevel=1)
