"""Whether the solver for GPUs has proved itself on this worker's GPU; the check is `mpitune.svm.cuda.selfcheck`."""

from __future__ import annotations

import logging
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from mpitune import svm
from mpitune.devices.selfcheck import Verdict, check, digest, gpu_key

SIZE = ("70", "512")  # of the check: samples of each class, threads of the largest block
CUPY = ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x")
_log = logging.getLogger(__name__)


@cache
def is_trusted() -> bool:
    """Whether the first visible GPU may be used without being asked for. The first call may take a minute."""
    if find_spec("cupy") is None:
        return False
    return not verdict_of_gpu().problem


def verdict_of_gpu(again: str = "") -> Verdict:
    """Verdict of the check on the first visible GPU."""
    sources = digest(*sorted(path.parent for path in Path(svm.__file__).parent.rglob("__init__.py")))
    return check(
        "mpitune.svm.cuda.selfcheck", {**gpu_key(), "cupy": _version(), "sources": sources}, *SIZE, again=bool(again)
    )


def name_for_gpu(name: str) -> str:
    """The solver of that name on a GPU; "auto" is "shared" if it is trusted, else "shared-on-cpu".

    It warns where "shared" is asked for and not trusted.
    """
    if name not in ("auto", "shared"):
        return name
    gpu = gpu_key().get("gpu", "GPU")
    if is_trusted():
        _log.info("%s: the solver passed its check", gpu)
        return "shared"
    cause = f"failed its check ({verdict_of_gpu().problem})" if find_spec("cupy") else "needs cupy"
    if name == "shared":
        _log.warning("%s: --solver shared is used as asked, though it %s", gpu, cause)
        return "shared"
    _log.warning(
        "%s: the GPU's solver %s: the one for CPUs is used, on a core for each slot (--gpu none uses all cores)",
        gpu, cause,
    )  # fmt: skip
    return "shared-on-cpu"


def _version() -> str:
    for name in CUPY:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "unknown"
