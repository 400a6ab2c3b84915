"""Networks find the machine code that an image carries."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from mpitune._jit.shipped import LEVELS, VARIABLE, level_here
from tests.helpers import ROOT

# A step of the search. Prints how often numba compiled something.
PROGRAM = """
from mpitune._jit.folders import set_cache_variables
set_cache_variables()
from numba.core import event
with event.install_recorder("numba:compile") as compiled:
    import torch
    from mnist_nn import net
    from mnist_nn.steps.choose import make_step
    params = dict(n_conv_layer=9, kernel_size=5, n_hidden_layer=40)
    weights = net.initial_weights(params, (28, 28), 10, seed=1, device=torch.device("cpu"))
    step = make_step("manual", weights, (28, 28), batch_size=10, learning_rate=0.1, momentum=0.1)
    step(torch.rand(10, 28, 28), torch.arange(10))
print(len(compiled.buffer))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64" or not level_here(), reason="needs x86-64 with AVX2")
def test_what_an_image_carries_for_networks_is_not_compiled_again(tmp_path: Path) -> None:
    code = tmp_path / "code"  # with whole seconds, as images keep the times of files
    for room in ("mpitune", "common", "mnist_nn"):
        for path in (path for path in (ROOT / room).rglob("*.py")):
            target = code / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
            os.utime(target, (1.7e9, 1.7e9))
    plain = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    plain.update(PYTHONPATH=str(code), OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")

    def run(*words: object, **environ: str) -> str:
        command = [sys.executable, *map(str, words)]
        done = subprocess.run(command, env=plain | environ, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    said = run("-m", "mpitune._jit.shipped", tmp_path / "image", "mnist_nn.warm:warm_up")
    assert said.count(" 2 functions") == len(LEVELS)
    (tmp_path / "home").mkdir(mode=0o700)
    here = {VARIABLE: str(tmp_path / "image"), "XDG_CACHE_HOME": str(tmp_path / "home")}
    assert run("-c", PROGRAM, **here).splitlines()[-1] == "0"
