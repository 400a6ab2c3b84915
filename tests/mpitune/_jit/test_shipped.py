"""Levels of processors that an image carries machine code for; `tests/mnist_nn/test_warm.py` has an image's program."""

from __future__ import annotations

from mpitune._jit.shipped import LEVELS, level_here


def cpuinfo(*flags: str) -> str:
    return f"processor\t: 0\nflags\t\t: fpu sse4_2 {' '.join(flags)}\nbugs\t\t: spectre_v1\n"


def test_a_processor_has_the_highest_level_all_of_whose_features_it_has() -> None:
    for level, flags in LEVELS.items():
        assert level_here(cpuinfo(*flags, "sha_ni")) == level
    assert level_here(cpuinfo(*LEVELS["x86-64-v4"][:-1])) == "x86-64-v3"
    assert level_here(cpuinfo("avx")) == level_here("Features : fp asimd sve") == ""
