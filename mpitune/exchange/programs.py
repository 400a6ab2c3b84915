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


def experiment_of(history: History) -> Experiment | None:
    """The experiment that a journal is of; None where it is none of these. Raises what its own code raises."""
    settings, kind, root = history.header["settings"], history.header.get("kind", "experiment"), checkout()
    if kind == "folds":  # of scikit-learn's estimators, whose import is dear
        from mpitune.sklearn.search.folds import Folds

        return Folds()
    programs = {path.parent.name for path in root.glob("*/experiment.py")} if root else ()
    if kind != "experiment" or root is None or settings["experiment"] not in programs:
        return None
    if str(root) not in sys.path:  # the console script lies elsewhere
        sys.path.insert(0, str(root))
    module = importlib.import_module(f"{settings['experiment']}.experiment")
    for _, cls in inspect.getmembers(module, inspect.isclass):
        if cls.__module__ == module.__name__ and issubclass(cls, Experiment) and not inspect.isabstract(cls):
            return restored(cls, settings)
    return None
