"""The programs that lie beside `common`: packages with a module `experiment`. What they want looked at, they say."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import common
from common.experiment import DoctorChecks, Experiment


def programs() -> dict[str, DoctorChecks]:
    """The checks that `python -m common.doctor` makes for each program, by its name."""
    found = {}
    for path in sorted(Path(common.__file__).parents[1].glob("*/experiment.py")):
        name = path.parent.name
        module = importlib.import_module(f"{name}.experiment")
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if issubclass(cls, Experiment) and not inspect.isabstract(cls) and cls.__module__ == module.__name__:
                found[name] = cls.doctor_checks
    return found


def kinds_of(every: dict[str, DoctorChecks], device: str) -> dict[str, list[str]]:
    """Libraries for "cpu" or "cuda", each with the programs that cannot run without it; none for an optional one."""
    found: dict[str, list[str]] = {}
    for name, checks in every.items():
        for library in checks.libraries.get(device, ()):
            found.setdefault(library, []).append(name)
        for library in checks.optional.get(device, ()):
            found.setdefault(library, [])
    return found
