"""The experiments of journals: of scikit-learn's searches, and of the programs of a checkout, beside `mpitune`."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

import mpitune
from mpitune.experiment import Experiment
from mpitune.settings import restored
from mpitune.storage.history import History


def checkout() -> Path | None:
    """The folder in which the programs lie beside this package; None where the package is installed by itself."""
    root = Path(mpitune.__file__).parents[1]
    return root if (root / "common" / "data.py").is_file() else None


def experiments() -> dict[str, type[Experiment]]:
    """The experiment of each program, by the program's name."""
    classes: dict[str, type[Experiment]] = {}
    root = checkout()
    if root is not None and str(root) not in sys.path:  # the console script lies elsewhere
        sys.path.insert(0, str(root))
    for path in sorted(root.glob("*/experiment.py")) if root else ():
        name = path.parent.name
        module = importlib.import_module(f"{name}.experiment")
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if issubclass(cls, Experiment) and not inspect.isabstract(cls) and cls.__module__ == module.__name__:
                classes[name] = cls
    return classes


def experiment_of(history: History) -> Experiment | None:
    """The experiment that a journal is of; None where it is none of these. Raises what its own code raises."""
    settings = history.header["settings"]
    if history.header.get("kind") == "folds":  # of scikit-learn's estimators, whose import is dear
        from mpitune.sklearn.search.folds import Folds

        return Folds()
    kind = experiments().get(settings["experiment"])
    return None if kind is None else restored(kind, settings)
