"""scikit-learn's own tests of its SVC, from the installed package, with this package's SVC in its place.

All of them hold.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest
import sklearn.svm

from mpitune.svm import SVC

pytestmark = pytest.mark.slow


def _their_tests() -> ModuleType:
    """scikit-learn's test module, executed while the name SVC means ours."""
    found = importlib.util.find_spec("sklearn.svm.tests.test_svm")
    assert found is not None and found.origin is not None
    spec = importlib.util.spec_from_file_location("scikit_learns_test_svm", Path(found.origin))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for what they pickle
    with patch.object(sklearn.svm, "SVC", SVC):
        spec.loader.exec_module(module)
    return module


globals().update({name: thing for name, thing in vars(_their_tests()).items() if name.startswith("test_")})


@pytest.fixture
def global_random_seed() -> int:
    """As scikit-learn's own conftest has it by default."""
    return 42
