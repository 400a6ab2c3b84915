"""What candidates share, for scikit-learn's own classes: one file a family, each with the reason why it may be shared.

A family says in which parameters candidates may differ that one fit serves. `family_of` finds the family of a class; a
subclass is not shared, as it may compute something else (it can have a `fit_grid` of its own, see
`mpitune.sklearn.grids`). Where a family cannot do something, it raises, and the candidates are fitted one by one.
"""

from __future__ import annotations

from importlib import import_module

from sklearn import get_config

from mpitune.sklearn.sharing.family import Family

# Class: the public module that has it, and the file here whose `FAMILIES` has its family.
_HOMES = {
    "KNeighborsClassifier": ("sklearn.neighbors", "neighbours"),
    "KNeighborsRegressor": ("sklearn.neighbors", "neighbours"),
    "RandomForestClassifier": ("sklearn.ensemble", "forests"),
    "RandomForestRegressor": ("sklearn.ensemble", "forests"),
    "ExtraTreesClassifier": ("sklearn.ensemble", "forests"),
    "ExtraTreesRegressor": ("sklearn.ensemble", "forests"),
    "BaggingClassifier": ("sklearn.ensemble", "prefixes"),
    "BaggingRegressor": ("sklearn.ensemble", "prefixes"),
    "AdaBoostClassifier": ("sklearn.ensemble", "prefixes"),
    "AdaBoostRegressor": ("sklearn.ensemble", "prefixes"),
    "GradientBoostingClassifier": ("sklearn.ensemble", "prefixes"),
    "GradientBoostingRegressor": ("sklearn.ensemble", "prefixes"),
    "HistGradientBoostingClassifier": ("sklearn.ensemble", "histograms"),
    "HistGradientBoostingRegressor": ("sklearn.ensemble", "histograms"),
    "LGBMClassifier": ("lightgbm", "lightgbm_trees"),
    "LGBMRegressor": ("lightgbm", "lightgbm_trees"),
    "XGBClassifier": ("xgboost", "xgboost_trees"),
    "XGBRegressor": ("xgboost", "xgboost_trees"),
    "Ridge": ("sklearn.linear_model", "ridge"),
    "RidgeClassifier": ("sklearn.linear_model", "ridge"),
    "KernelRidge": ("sklearn.kernel_ridge", "kernel_ridge"),
    "GaussianProcessRegressor": ("sklearn.gaussian_process", "gaussian_processes"),
    "LinearDiscriminantAnalysis": ("sklearn.discriminant_analysis", "discriminants"),
    "PCA": ("sklearn.decomposition", "components"),
    "SelectKBest": ("sklearn.feature_selection", "filters"),
    "SelectPercentile": ("sklearn.feature_selection", "filters"),
    "SelectFpr": ("sklearn.feature_selection", "filters"),
    "SelectFdr": ("sklearn.feature_selection", "filters"),
    "SelectFwe": ("sklearn.feature_selection", "filters"),
    "SelectFromModel": ("sklearn.feature_selection", "filters"),
    "Lasso": ("sklearn.linear_model", "warm_starts"),
    "ElasticNet": ("sklearn.linear_model", "warm_starts"),
    "LogisticRegression": ("sklearn.linear_model", "warm_starts"),
}


def family_of(kind: type, share: str | bool) -> Family | None:
    """The family of a class, None without one; one that is not exact only with `share="tolerance"`."""
    home, file = _HOMES.get(kind.__name__, ("", ""))
    if get_config()["array_api_dispatch"]:  # scikit-learn takes other ways then
        return None
    if not share or kind.__module__.split(".")[0] != home.split(".")[0]:
        return None
    if getattr(import_module(home), kind.__name__, None) is not kind:
        return None
    families: dict[str, Family] = import_module(f"mpitune.sklearn.sharing.{file}").FAMILIES
    family = families[kind.__name__]
    return family if family.exact or share == "tolerance" else None
