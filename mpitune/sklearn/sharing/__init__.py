"""What candidates share, for scikit-learn's own classes: families, each with the reason why it may be shared.

A family says in which parameters candidates may differ that one fit serves. `family_of` finds the family of a class; a
subclass is not shared, as it may compute something else (it can have a `fit_grid` of its own, see
`mpitune.sklearn.fits.grids`). Where a family cannot do something, it raises, and the candidates are fitted one by one.
"""

from __future__ import annotations

from importlib import import_module

from sklearn import get_config

from mpitune.sklearn.sharing.family import Family

# The file here whose `FAMILIES` has a family: the public module that has its classes, and these.
_FILES = {
    "neighbours": {"sklearn.neighbors": "KNeighborsClassifier KNeighborsRegressor"},
    "prefixes": {
        "sklearn.ensemble": "RandomForestClassifier RandomForestRegressor ExtraTreesClassifier ExtraTreesRegressor "
        "BaggingClassifier BaggingRegressor AdaBoostClassifier AdaBoostRegressor GradientBoostingClassifier "
        "GradientBoostingRegressor HistGradientBoostingClassifier HistGradientBoostingRegressor"
    },
    "boosting": {"lightgbm": "LGBMClassifier LGBMRegressor", "xgboost": "XGBClassifier XGBRegressor"},
    "components": {"sklearn.decomposition": "PCA"},
}
_HOMES = {
    name: (home, file) for file, homes in _FILES.items() for home, names in homes.items() for name in names.split()
}


def family_of(kind: type) -> Family | None:
    """The family of a class, None without one."""
    home, file = _HOMES.get(kind.__name__, ("", ""))
    if get_config()["array_api_dispatch"]:  # scikit-learn takes other ways then
        return None
    if kind.__module__.split(".")[0] != home.split(".")[0]:
        return None
    if getattr(import_module(home), kind.__name__, None) is not kind:
        return None
    families: dict[str, Family] = import_module(f"mpitune.sklearn.sharing.{file}").FAMILIES
    return families[kind.__name__]
