"""What a results folder knows an estimator, samples and splits by."""

from __future__ import annotations

import pickle
from types import FunctionType
from typing import Any

import cloudpickle
import joblib
from joblib.hashing import NumpyHasher

from mpitune.settings import without_address


def described(estimator: Any) -> str:
    """What distinguishes estimators in a results folder: the text, and a digest of what the text may not show."""
    try:
        text = estimator.__repr__(N_CHAR_MAX=100_000)
    except TypeError:  # it is a class, or has a `__repr__` of its own
        text = repr(estimator)
    return f"{without_address(text)} ({digest_of(estimator)})"


class _Hasher(NumpyHasher):
    """As `joblib.hash`, without callbacks: each run has others.

    joblib sorts what Python can sort. Of other sets and keys the order is another one in each process.
    """

    def save(self, obj: Any) -> None:
        if type(obj) is dict and "_skl_callbacks" in obj:
            obj = {name: value for name, value in obj.items() if name != "_skl_callbacks"}
        if type(obj) is dict and len(set(map(type, obj))) > 1:
            obj = "dict", sorted((digest_of(key), digest_of(value)) for key, value in obj.items())
        elif type(obj) in (set, frozenset):
            obj = type(obj).__name__, sorted(map(digest_of, obj))
        super().save(obj)


class _ValuesHasher(_Hasher):
    """Of functions and classes without a name in a module, such as lambdas, what they hold: `called` has their code."""

    def save(self, obj: Any) -> None:
        if isinstance(obj, FunctionType) and "<" in obj.__qualname__:
            obj = obj.__defaults__, obj.__kwdefaults__, [cell.cell_contents for cell in obj.__closure__ or ()]
        elif isinstance(obj, type) and "<" in obj.__qualname__:
            obj = obj.__name__
        super().save(obj)


def digest_of(thing: Any) -> str:
    """The same for equal things, in any process; callbacks do not count."""
    for hasher in (_Hasher, _ValuesHasher):
        try:
            return str(hasher(hash_name="sha1").hash(thing))
        except (pickle.PicklingError, TypeError, AttributeError, ValueError):  # it holds a lambda, for instance
            continue
    return str(joblib.hash(cloudpickle.dumps(thing), hash_name="sha1"))
