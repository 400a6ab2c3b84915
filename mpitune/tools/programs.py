"""The programs that lie beside `common`: packages with a module `experiment`, and the experiment in each."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import common
from common.experiment import Experiment


def experiments() -> dict[str, type[Experiment]]:
    """The experiment of each program, by the program's name."""
    found = {}
    for path in sorted(Path(common.__file__).parents[1].glob("*/experiment.py")):
        name = path.parent.name
        module = importlib.import_module(f"{name}.experiment")
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if issubclass(cls, Experiment) and not inspect.isabstract(cls) and cls.__module__ == module.__name__:
                found[name] = cls
    return found
