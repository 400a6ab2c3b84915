"""Imported by the server that forks workers, see `ways`: what they would import one by one."""

import importlib

from tests.differential.case import _everything

_everything()
for name in (
    "mpitune.engine.worker",
    "mpitune.sklearn.folds",
    "mpitune.sklearn.graph_walk",
    "mpitune.svm.candidates",
    "mpitune.svm.svc",
):
    importlib.import_module(name)
