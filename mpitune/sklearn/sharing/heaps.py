"""Which of the samples equally far scikit-learn keeps, without its search: its own heap, given the same distances.

For each row scikit-learn pushes the distances of all training samples, in their order, to a heap that keeps the k
smallest (`ArgKmin`). What is not smaller than the largest of these changes nothing. So a distance that is not smaller
than the n-th smallest of some before it need not be pushed to a heap of size n or less.

That holds where the pushed distances are known to the bit. These are city-block distances, which SciPy adds up in the
same order, and squared Euclidean distances between whole numbers, where nothing is rounded. It holds for one thread:
several threads would divide the training samples.
"""

from __future__ import annotations

from collections import deque
from itertools import repeat
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from sklearn import get_config

try:
    from sklearn.neighbors._kd_tree import NeighborsHeap64 as NeighborsHeap
except ImportError:
    from sklearn.neighbors._kd_tree import NeighborsHeap

_METRICS = {"manhattan": "cityblock", "euclidean": "sqeuclidean"}


class Heaps:
    """The heaps of some rows.

    Args:
        X, Y: The samples asked about and the training samples, float64, C order.
        metric: "manhattan" or "euclidean".
        rows: Those of X that may be asked for.
        n_near: The largest size of a heap.
    """

    def __init__(self, X: np.ndarray, Y: np.ndarray, metric: str, rows: np.ndarray, n_near: int):
        self._squared = metric == "euclidean"
        chunk = get_config()["pairwise_dist_chunk_size"] or 256
        self._twice = len(X) <= min(len(Y), 4 * chunk)  # then what a heap keeps is pushed to another
        distances = cdist(X[rows], Y, _METRICS[metric])
        pushed, end = np.ones(distances.shape, np.bool_), 2 * n_near
        while end < len(Y):
            limits = np.partition(distances[:, :end], n_near - 1, axis=1)[:, n_near - 1, None]
            np.less(distances[:, end : 2 * end], limits, out=pushed[:, end : 2 * end])
            end *= 2
        self._pushed = {}
        for row, found, chosen in zip(rows.tolist(), distances, pushed, strict=True):
            places = np.flatnonzero(chosen)
            self._pushed[row] = found[places].tolist(), places.tolist()

    @staticmethod
    def known(X: Any, Y: Any, metric: str) -> bool:
        """Whether the distances that scikit-learn pushes are known to the bit."""
        if metric == "manhattan":
            return True
        if metric != "euclidean":
            return False
        largest = max(np.abs(X).max(), np.abs(Y).max())
        return bool(largest**2 * X.shape[1] < 1 << 50 and (np.rint(X) == X).all() and (np.rint(Y) == Y).all())

    def kept(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Distances (float64) and indices of the k nearest, (len(rows), k) each, as scikit-learn has them."""
        heap = _pushed([self._pushed[row] for row in rows.tolist()], k)
        if self._twice:
            kept = zip(*(part.tolist() for part in heap.get_arrays(sort=False)), strict=True)
            heap = _pushed(list(kept), k)
        distances, indices = heap.get_arrays()
        return (np.sqrt(distances) if self._squared else distances), indices


def _pushed(rows: list[tuple[list[float], list[int]]], k: int) -> Any:
    """Heaps of size k, to which distances and indices of each row were pushed."""
    heap = NeighborsHeap(len(rows), k)
    for place, (distances, indices) in enumerate(rows):
        deque(map(heap.push, repeat(place), distances, indices), maxlen=0)
    return heap
