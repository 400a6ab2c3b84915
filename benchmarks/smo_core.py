"""Time of one SMO iteration against what reading its two kernel rows costs on this machine.

    python -m benchmarks.smo_core [--samples 500 2000 5000 10000]

An iteration reads two rows of K - 1 that the iterations before it have hardly touched; everything else stays
in the first caches. The limit is the time to read two rows: the rows of the same matrix, summed in random order
in the same run. One thread, nothing left out of the problem; the two measurements alternate and the fastest of
each is shown.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from benchmarks.machine import circumstances, publish, table
from mpitune._jit import LANES
from mpitune._jit.simd import add, compiled, lane, load, splat
from mpitune.svm.kernel.rbf import kernel_minus_one, prepare
from mpitune.svm.solver.smo import iterate, set_masks

ITERATIONS = 20_000
REPEATS = 5


@compiled
def read_rows(matrix, order):
    """Sum of some rows (one lane of it), with four accumulators."""
    width = matrix.shape[1]
    a, b, c, d = splat(np.float32(0)), splat(np.float32(0)), splat(np.float32(0)), splat(np.float32(0))
    for i in order:
        for j in range(0, width - 4 * LANES + 1, 4 * LANES):
            at = i * width + j
            a, b = add(a, load(matrix, at)), add(b, load(matrix, at + LANES))
            c, d = add(c, load(matrix, at + 2 * LANES)), add(d, load(matrix, at + 3 * LANES))
    return lane(add(add(a, b), add(c, d)), 0)


def problem(n: int) -> tuple[np.ndarray, np.ndarray]:
    """K - 1 and labels of two overlapping clouds of n samples in 50 dimensions."""
    rng = np.random.default_rng(n)
    y = np.arange(n) % 2
    samples = prepare(rng.normal(size=(n, 50)) + 0.1 * y[:, None], y)
    sign = np.zeros(samples.width, np.int8)
    sign[samples.row_of] = np.where(y == 0, 1, -1)
    return kernel_minus_one(samples, 0.02), sign


def measure(n: int) -> tuple[float, float, int]:
    """(microseconds per iteration, microseconds to read two rows, bytes of the matrix)."""
    matrix, sign = problem(n)
    width = len(sign)
    blocks = np.arange(width // LANES, dtype=np.int32)
    order = np.random.default_rng(0).permutation(width)
    solver = reader = np.inf
    for _ in range(REPEATS + 1):  # the first round compiles
        f, beta = -sign.astype(np.float64), np.zeros(width)
        up, low = np.zeros(width, np.uint8), np.zeros(width, np.uint8)
        bounds = np.full(width, 1e6)
        set_masks(sign, beta, bounds, up, low)
        begin = time.process_time()
        _, done = iterate(matrix, blocks, sign, f, beta, up, low, bounds, 0.0, ITERATIONS, np.empty(2))
        solver = min(solver, (time.process_time() - begin) / done)
        begin = time.process_time()
        for _ in range(-(-ITERATIONS // width)):
            read_rows(matrix, order)
        reader = min(reader, (time.process_time() - begin) / (-(-ITERATIONS // width) * width))
    return solver * 1e6, 2 * reader * 1e6, matrix.nbytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, nargs="+", default=[500, 2000, 5000, 10000], help="sizes of the problem")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the table in this file")
    settings = parser.parse_args()
    rows = []
    for n in settings.samples:
        solver, reader, size = measure(n)
        rows.append(
            {
                "samples": n,
                "matrix MB": f"{size / 1e6:.0f}",
                "us per iteration": f"{solver:.2f}",
                "us for two rows": f"{reader:.2f}",
                "GB/s": f"{8 * n / reader / 1e3:.0f}",
                "times the limit": f"{solver / reader:.1f}",
            }
        )
    facts = circumstances("numba", "numpy", threads=1, iterations=ITERATIONS)
    publish(f"{facts}\n\n{table(rows)}", settings.results)


if __name__ == "__main__":
    main()
