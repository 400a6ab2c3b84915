"""Sources of random numbers, which begin anew with each trial: the global ones, and those that an objective holds.

So an objective that draws from them, as most do somewhere, has the same results in any worker and after any retry.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from mpitune.processes.process import OnImport
from mpitune.trial import seed_of

_last: tuple[Any, ...] = None, "", ()  # what they began for
_for_torch = 0  # the running trial's number
_on_import = OnImport("torch", lambda torch: torch.manual_seed(_for_torch))  # which begins the same in all processes


def begin(experiment: Any, key: str, held: Iterable[list[Any]] = ()) -> None:
    """Seed them for the trial of this key by an experiment's `seed`; nothing where that is no whole number.

    held: those of the objective, each with what it has drawn first, which tells it from others.
    """
    global _for_torch, _last
    _last = experiment, key, held
    if not isinstance(root := getattr(experiment, "seed", None), int) or root < 0:
        return
    words = seed_of(root, f"global/{key}").generate_state(8)
    random.seed(words.tobytes())
    np.random.seed(words)
    _for_torch = int.from_bytes(words[:2].tobytes(), "little")
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "manual_seed"):
        torch.manual_seed(_for_torch)
    elif _on_import not in sys.meta_path:
        sys.meta_path.insert(0, _on_import)
    for pair in held:
        source, first = pair
        pair[1] = first or str((getattr(source, "random", None) or source.initial_seed)())
        own = seed_of(root, f"{pair[1]}/{key}")
        if isinstance(source, np.random.Generator):
            source.bit_generator.state = type(source.bit_generator)(own).state
        else:
            getattr(source, "manual_seed", source.seed)(int(own.generate_state(1)[0]))


def drawn() -> bool:
    """Whether one of them has been drawn from, or seeded, since they began. They begin anew."""
    torch: Any = sys.modules.get("torch")
    of_torch = (torch.default_generator, *torch.cuda.default_generators) if hasattr(torch, "default_generator") else ()
    sources: list[Any] = [random, np.random, *(source for source, _ in _last[2]), *of_torch]
    nexts = lambda: [one.random() if hasattr(one, "random") else bytes(one.get_state().numpy()) for one in sources]  # noqa: E731
    now = nexts()
    begin(*_last)
    return now != nexts()


@contextmanager
def restored() -> Iterator[None]:
    """Afterwards they are as before: a script draws from them as if no trial had run in its process."""
    python, numpy = random.getstate(), np.random.get_state()
    torch: Any = sys.modules.get("torch")
    state = torch and torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch:
            torch.set_rng_state(state)
        with suppress(ValueError):
            sys.meta_path.remove(_on_import)
