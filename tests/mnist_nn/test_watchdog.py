"""Who is silent, by what a process of a training hears of the next one."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from mnist_nn.parallel import watchdog
from mnist_nn.parallel.watchdog import Watchdog
from mpitune.ranks.heartbeat import BEATS


class Heard:
    """A store in which the next process says something at some beats of this one, which ends after the last."""

    def __init__(self, *says: bool) -> None:
        self._store, self._says = dist.HashStore(), iter(says)
        self._store.set("alive/1", "0")
        self.dog = Watchdog(self, 0, 2)

    def set(self, name: str, value: Any) -> None:
        self._store.set(name, value)

    def multi_get(self, names: list[str]) -> list[bytes]:
        says = next(self._says, None)
        if says is None:
            self.dog._over.set()
        elif says:
            self._store.add("alive/1", 1)
        return [self._store.get(name) for name in names]


@pytest.mark.parametrize(
    ("says", "failed"),
    [([True, *[False] * (BEATS - 1), True], b""), ([True, *[False] * BEATS], b"rank 1 is silent")],
)
def test_silence_is_counted_in_beats(says: list[bool], failed: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock an hour passes from look to look: this host was suspended, and the others too."""
    clock = SimpleNamespace(monotonic=itertools.count(0.0, 3600.0).__next__)
    monkeypatch.setattr(watchdog, "time", clock)
    ended: list[str] = []
    store = Heard(*says)
    monkeypatch.setattr(store.dog, "_end", ended.append)
    monkeypatch.setattr(store.dog._over, "wait", lambda seconds: store.dog._over.is_set())
    store.dog.run()
    assert store._store.get("failed") == failed and bool(ended) == bool(failed)
