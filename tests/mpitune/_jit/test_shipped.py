"""Machine code that an image carries: compiled once for a level of processors, and found by a program that starts."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from mpitune._jit.shipped import LEVELS, VARIABLE, level_here, variables
from tests.helpers import ROOT

MODULE = """
from mpitune._jit.cache import compiled

@compiled
def twice(x):
    return 2 * x + 1

def warm_up():
    twice(1.0)
"""
PROGRAM = """
from mpitune._jit.folders import set_cache_variables
set_cache_variables()
from numba.core import event
with event.install_recorder("numba:compile") as compiled:
    import module
    assert module.twice(2.0) == 5.0
    from mpitune._jit import LANES
    print(len(compiled.buffer), LANES)
"""


def cpuinfo(*flags: str) -> str:
    return f"processor\t: 0\nflags\t\t: fpu sse4_2 {' '.join(flags)}\nbugs\t\t: spectre_v1\n"


def test_a_processor_has_the_highest_level_all_of_whose_features_it_has() -> None:
    for level, flags in LEVELS.items():
        assert level_here(cpuinfo(*flags, "sha_ni")) == level
    assert level_here(cpuinfo(*LEVELS["x86-64-v4"][:-1])) == "x86-64-v3"
    assert level_here(cpuinfo("avx")) == level_here("Features : fp asimd sve") == ""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64" or not level_here(), reason="needs x86-64 with AVX2")
def test_what_an_image_carries_is_not_compiled_again(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(MODULE)
    os.utime(tmp_path / "module.py", (1.7e9, 1.7e9))  # images keep whole seconds, and numba looks at them
    plain = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    plain.update(PYTHONPATH=f"{ROOT}:{tmp_path}")

    def run(*command: str, **environ: str) -> str:
        made = plain | environ
        done = subprocess.run([sys.executable, *command], env=made, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    image = tmp_path / "image"
    assert run("-m", "mpitune._jit.shipped", str(image), "module:warm_up").count("1 functions") == len(LEVELS)
    (tmp_path / "home").mkdir(mode=0o700)
    here = {VARIABLE: str(image), "XDG_CACHE_HOME": str(tmp_path / "home")}
    n_lanes = "16" if level_here() == "x86-64-v4" else "8"
    assert run("-c", PROGRAM, **here).split() == ["0", n_lanes]
    assert run("-c", PROGRAM, **here).split() == ["0", n_lanes]
    other = variables("x86-64-v3") | {"NUMBA_CPU_NAME": "haswell"}  # somebody who knows better is obeyed
    assert run("-c", PROGRAM, **here, **other).split() == ["2", "8"]
