"""The measurement of small networks on a GPU: its ways of a step agree, and it runs to its end without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.gpu_networks import SGD, WAYS, grouped, initial  # noqa: E402
from mnist_nn.steps.choose import manual_step  # noqa: E402


@pytest.mark.skipif(torch.cuda.is_available(), reason="compares on the CPU")
@pytest.mark.parametrize("way", WAYS)
def test_a_group_learns_what_each_of_its_networks_learns_alone(way: str) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 3, 10, 28, 28, generator=generator)
    y = torch.randint(10, (6, 3, 10), generator=generator)
    weights, step = grouped("tiny", way, 3)
    for pixels, labels in zip(x, y, strict=True):
        step(pixels, labels)
    for number in range(3):
        before, alone = initial("tiny", number), manual_step(initial("tiny", number), (28, 28), **SGD)
        for pixels, labels in zip(x[:, number], y[:, number], strict=True):
            alone(pixels, labels)
        for name, expected in alone.finish().items():
            change = float((expected - before[name]).abs().max())
            assert float((weights[name][number] - expected).abs().max()) < 1e-4 * change, (name, number)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="takes ten minutes on a GPU")
def test_all_of_it_runs_without_a_gpu(program: Any, tmp_path: Path) -> None:
    program("-m", "benchmarks.gpu_networks", "--results", tmp_path / "f.md", env={"CUDA_VISIBLE_DEVICES": ""})
    text = (tmp_path / "f.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| tiny")]
    assert len(rows) == 9 + 9 and all(float(us) > 0 for _, _, _, us, _, _ in rows)
    assert all(bits == "yes" for _, way, _, _, _, bits in rows if way in ("streams", "branches"))
    assert "seconds of" in text and "41 of 41 trials" in text
