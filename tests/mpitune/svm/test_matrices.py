"""Matrices that the workers of a node fill and read together: real processes, real kills, real lack of memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnist_svm.experiment import SvmGrid
from mpitune.engine.queue import Queue
from mpitune.memory.shared_arrays import MemoryFile
from mpitune.svm.kernel.rbf import kernel_minus_one, prepare, squared_distances
from mpitune.svm.matrices.plan import choose_plan, keep
from mpitune.svm.matrices.pool import bytes_of
from tests.helpers import PATIENCE, ROOT, table_without_run

GB = 10**9
GAMMAS = (1e-3, 1e-2, 1e-1)
PENALTIES = [0.1, 10.0, 1000.0]
DIGITS = ("--dataset", "digits", "--gpu", "none", "--solver", "shared")


def drawn(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples of ten classes that overlap; drawn, since every process here makes them again."""
    rng = np.random.default_rng(n)
    labels = np.arange(n) % 10
    return rng.normal(size=(10, 20))[labels] + rng.normal(size=(n, 20)), labels


# Results


@pytest.mark.parametrize("with_distances", [False, True])
def test_strips_have_the_bits_of_the_whole(node_memory: MemoryFile, with_distances: bool) -> None:
    samples = prepare(*drawn(300))
    least = choose_plan(samples, "ovr", n_points=1, memory=GB, sharers=2, distances=False).need
    kept = keep(samples, "ovr", 1, GB if with_distances else least, node_memory, 2)
    assert kept.shared is node_memory and kept.plan.distances == with_distances
    for gamma in GAMMAS:
        with kept.source(gamma) as source:
            np.testing.assert_array_equal(source.kernel, kernel_minus_one(samples, gamma))
            if with_distances:
                np.testing.assert_array_equal(source.distances, squared_distances(samples))
            else:
                assert source.distances is None


# Memory


@pytest.mark.parametrize(
    ("room", "shared", "kernels", "distances"),
    [(0.5, False, 1, True), (1.5, True, 1, False), (2.5, True, 2, False), (9.0, True, 2, True)],
)
def test_memory_that_others_have_taken_meanwhile_kills_nobody(
    node_memory: MemoryFile, monkeypatch: pytest.MonkeyPatch, room: float, shared: bool, kernels: int, distances: bool
) -> None:
    """There is room for so many matrices, although the plan has two kernels and the distances."""
    samples = prepare(*drawn(300))

    def free() -> int:
        return int(room * bytes_of(1, samples.width)) - 512 * os.fstat(node_memory.descriptor).st_blocks

    monkeypatch.setattr("mpitune.memory.shared_arrays.free_memory", free)
    for _ in range(2):  # and the second process has the same
        kept = keep(samples, "ovr", 1, GB, node_memory, 2)
        assert (bool(kept.shared), kept.plan.kernels, kept.plan.distances) == (shared, kernels, distances)
        with kept.source(0.1) as source:
            assert source.kernel is not None and source.kernel.sum() < 0


def test_the_first_processs_memory_makes_the_plan(node_memory: MemoryFile) -> None:
    samples = prepare(*drawn(300))
    plans = [keep(samples, "ovo", 3, memory, node_memory, 2).plan for memory in (GB, GB // 10, 2 * GB)]
    assert len(set(plans)) == 1 and plans[0].distances
    assert keep(samples, "ovo", 3, GB, node_memory, 1).shared is None, "one worker has its own"


def test_workers_that_share_matrices_work_on_one_gamma() -> None:
    """One-vs-rest: five slots of a node begin with the folds of one gamma; alone, or elsewhere, gammas stay whole."""
    experiment = SvmGrid(24, multiclass="ovr", solver="shared")
    (search,) = experiment.searches()
    batches = next(search)
    assert replace(experiment, multiclass="ovo").shared_cost(batches[0], 5) > 0, "of pairs of classes a gamma is whole"

    def first(n_slots: int, workers: int) -> list[tuple[str, int]]:
        queue = Queue(experiment.scheduling(), workers)
        for batch in batches:
            queue.push(batch)
        idle = (0.0, [0.0] * (n_slots - 1))
        found = [queue.pop(lambda waiting: False, n_slots=n_slots, free_in=lambda: idle) for n in range(n_slots)]
        return [(waiting.batch[0].key, len(waiting.batch)) for waiting in found if waiting is not None]

    assert first(5, workers=5) == [(f"g00/c00/f{fold}", 24) for fold in range(5)]
    assert first(1, workers=1) == [("g00/c00/f0", 120)]
    assert [size for _, size in first(2, workers=1)] == [120, 120]


# The program


def with_memory(kib: int, folder: Path, *command: Any) -> subprocess.CompletedProcess[str]:
    """The command on a machine with so little memory, as its /proc/meminfo says in a mount namespace of its own."""
    meminfo = folder / "meminfo"
    meminfo.write_text(f"MemAvailable: {kib} kB\n")
    unshare = ["unshare", "--mount", "sh", "-c", f'mount --bind {meminfo} /proc/meminfo && exec "$@"', "sh"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("mount namespaces are not permitted here")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = [*unshare, sys.executable, *map(str, command)]
    return subprocess.run(arguments, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize("multiclass", ["ovo", "ovr"])
def test_the_table_is_the_same_with_one_worker_and_with_three(
    program: Callable[..., Any], tmp_path: Path, multiclass: str
) -> None:
    command = ("-m", "mnist_svm", 2, *DIGITS, "--train-size", 200, "--multiclass", multiclass, "-v", "--results")
    program(*command, tmp_path / "1", "--workers", 1)
    shared = program(*command, tmp_path / "3", "--workers", 3)
    assert "(3 processes share them)" in shared.stderr
    assert "leaked" not in shared.stderr, "of the resource tracker: shared memory was not removed"
    assert_same_study(tmp_path / "1", tmp_path / "3")
    if multiclass == "ovr":
        private = with_memory(128, tmp_path, *command, tmp_path / "little", "--workers", 3, "--memory", 1)
        assert private.returncode == 0, private.stderr
        assert "K of all samples" in private.stderr and "share them" not in private.stderr
        assert_same_study(tmp_path / "1", tmp_path / "little")


def assert_same_study(one: Path, other: Path) -> None:
    assert table_without_run(one / "results.csv") == table_without_run(other / "results.csv")
    assert (one / "best.json").read_text() == (other / "best.json").read_text()
