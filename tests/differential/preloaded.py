"""Imported by the server that forks workers, see `ways`: what they would import one by one."""

import importlib

from tests.differential.case import _everything

_everything()
for name in (
    "common.engine.worker",
    "common.sklearn.folds",
    "common.sklearn.walk",
    "kernel_svm.search",
    "kernel_svm.svc",
):
    importlib.import_module(name)
