"""Which ways to compute a training step have proved themselves on this worker's GPU; the check is `mnist_nn.selfcheck`.

    autograd    plain PyTorch, what is left where nothing else is trusted
    manual      the step written by hand
    grouped     several networks together, replayed from a CUDA graph
    fused       the same with the hidden layer's kernels in Triton

A worker sees one GPU, and has one batch size.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

from mpitune.devices.selfcheck import Verdict, check, digest, gpu_key
from mpitune.trial import Outcome

STEPS = ("auto", "autograd", "manual", "grouped")  # what --step takes
WAYS = ("autograd", "manual", "grouped", "fused")
WAY = "way"  # value of a result that was computed on a GPU: the position of its way in WAYS
_log = logging.getLogger(__name__)


@cache
def trusted_ways(batch_size: int) -> frozenset[str]:
    """The ways that may be chosen on this GPU; "autograd" always may. The first call may take a minute."""
    verdict = verdict_of("cuda", batch_size)
    gpu = gpu_key().get("gpu", "GPU")
    wrong = [way for way in WAYS if not verdict.trusts(way)]
    if wrong == ["fused"]:
        _log.warning("%s: the Triton kernels failed their check (%s): steps take longer", gpu, verdict.problem)
    elif wrong:
        best = next((way for way in reversed(WAYS) if verdict.trusts(way)), "autograd")
        _log.warning("%s: fast training steps failed their check (%s): %r is used", gpu, verdict.problem, best)
    else:
        _log.info("%s: the training steps passed their check, %.0f s", gpu, verdict.seconds)
    return frozenset({"autograd", *WAYS}.difference(wrong[1:] if wrong[:1] == ["autograd"] else wrong))


def warn_untrusted(step: str, batch_size: int) -> None:
    """Ask for the check; say so where the step that the user asks for is used though it did not pass."""
    trusted = trusted_ways(batch_size)
    if step != "auto" and step not in trusted:
        _log.warning("--step %s is used as asked, though nothing has shown that it is right on this GPU", step)


def verdict_of(kind: str, batch_size: int, again: bool = False) -> Verdict:
    """Verdict of the check on the first visible device of a kind, "cuda" or "cpu"."""
    here = Path(__file__).parent
    sources = digest(*map(here.joinpath, ("steps", "net.py", "training.py", "selfcheck.py", "small_trainings.py")))
    versions = {name: _version(name) for name in ("torch", "triton")}
    return check(
        "mnist_nn.selfcheck", {**gpu_key(), **versions, "sources": sources}, kind, str(batch_size), again=again
    )


def verdict_of_gpu(again: str = "", batch_size: str = "10") -> Verdict:
    """The same of the GPU that this process sees."""
    return verdict_of("cuda", int(batch_size), bool(again))


def mixed_ways(outcomes: Iterable[Outcome]) -> str:
    """One line for the report of a study whose results were not all computed in the same way; else ""."""
    count: Counter[str] = Counter()
    for _, result in outcomes:
        if not result.failed:
            count[WAYS[int(result.values[WAY])] + " on a GPU" if WAY in result.values else "a CPU's steps"] += 1
    if len(count) < 2:
        return ""
    parts = ", ".join(f"{n} by {way}" for way, n in count.most_common())
    return f"results were not all computed in the same way, which differ by rounding: {parts}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
