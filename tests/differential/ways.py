"""The ways in which a search is run: in this process, with workers, and with a journal that is cut."""

from __future__ import annotations

import dataclasses
import os
import pickle
import random
import re
import resource
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import sklearn.model_selection as theirs
from sklearn.experimental import enable_halving_search_cv  # noqa: F401

from tests.differential.case import SEARCHES, Case

CPU_SECONDS = 4  # that scikit-learn may take for a search with a LIBSVM in it; one in a hundred never ends


@dataclasses.dataclass(frozen=True)
class Result:
    """What a search came to: it raised, or is fitted; and the names of its script, such as `X`."""

    names: Mapping[str, Any]
    error: Exception | None = None

    @property
    def search(self) -> Any:
        return self.names["search"]


def classes(module: Any) -> dict[str, Any]:
    """The searches of a module, by name."""
    return {name: getattr(module, name) for name in SEARCHES}


def run(case: Case, searches: Mapping[str, Any], more: Mapping[str, Any]) -> Result:
    """Make and fit a search; it is pickled and loaded before and after that, also by scikit-learn's own way."""
    names: dict[str, Any] = {}
    with warnings.catch_warnings(), silence():
        warnings.simplefilter("ignore")
        try:
            names = case.made(searches, more)
            names["search"] = loaded(names["search"])
            eval(f"search.fit({case.fit})", names)
            names["search"] = loaded(names["search"])
        except SyntaxError:
            raise  # this text is no Python
        except Exception as error:
            return Result(names, error)
    return Result(names)


def loaded(search: Any) -> Any:
    """A copy by pickle, or by cloudpickle where the script has a function that has no name for pickle."""
    try:
        content = pickle.dumps(search)
    except (pickle.PicklingError, AttributeError, TypeError):
        if "lambda" not in str(search.get_params()):
            raise
        content = cloudpickle.dumps(search)
    return pickle.loads(content)


@contextmanager
def silence() -> Iterator[None]:
    """Nothing is printed, by libraries written in C either."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    nothing = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nothing, number)
    os.close(nothing)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip((1, 2), kept, strict=True):
            os.dup2(old, number)
            os.close(old)


def reference(case: Case) -> Result:
    """By scikit-learn."""
    return run(case, classes(theirs), {})


def ends(case: Case) -> bool:
    """Whether scikit-learn's search ends: on samples of huge values its LIBSVM may iterate for ever."""
    if not re.search(r"\b(Nu)?SV[CR]\(", repr(case)):
        return True
    if (child := os.fork()) == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))  # a child's count begins at 0
            reference(case)
        finally:
            os._exit(0)
    return not os.WIFSIGNALED(os.waitpid(child, 0)[1])


def _ours(case: Case, more: Mapping[str, Any]) -> Result:
    import mpitune.sklearn

    own = {key: eval(text) for key, text in case.ours.items()}
    return run(case, classes(mpitune.sklearn), {**own, **more})


def here(case: Case) -> Result:
    return _ours(case, {"workers": 0})


def workers(case: Case) -> Result:
    return _ours(case, {"workers": 2})


def journal(case: Case) -> Result:
    """A study that ended in the middle: of one of its journals a beginning is left, of later ones nothing."""
    draw = random.Random(case.seed)
    folder = Path(tempfile.mkdtemp(prefix="differential"))
    try:
        first = _ours(case, {"workers": 0, "results": str(folder)})
        if not cut(folder, draw):
            return first
        return _ours(case, {"workers": draw.choice([0, 0, 2]), "results": str(folder)})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cut(folder: Path, draw: random.Random) -> bool:
    """Cut a journal after some of its trials, at the end of a line or within one. Returns whether there was one."""
    found = sorted(folder.rglob("journal.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    if not found:
        return False
    place = draw.randrange(len(found))
    for later in found[place + 1 :]:
        shutil.rmtree(later.parent)
    lines = found[place].read_bytes().splitlines(keepends=True)
    trials = [number for number, line in enumerate(lines) if line.startswith(b'{"key"')]
    if not trials:
        return True
    last = draw.choice([trials[0] - 1, *trials])
    rest = lines[last + 1][: draw.choice([0, 0, 1, 40, 200])] if last + 1 < len(lines) else b""
    found[place].write_bytes(b"".join(lines[: last + 1]) + rest)
    for path in found[place].parent.iterdir():
        if path != found[place] and path.is_file():
            path.unlink()
    return True


WAYS: dict[str, Callable[[Case], Result]] = {"here": here, "workers": workers, "journal": journal}
