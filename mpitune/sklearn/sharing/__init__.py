"""What candidates share, for scikit-learn's own classes: families, each with the reason why it may be shared.

A family says in which parameters candidates may differ that one fit serves. `family_of` finds the family of a class; a
subclass is not shared, as it may compute something else. Where a family cannot do something, it raises, and the
candidates are fitted one by one.
"""

from __future__ import annotations

from importlib import import_module

from sklearn import get_config

from mpitune.sklearn.sharing.family import Family

# The public module of a library: the file here whose `FAMILIES` has the families of its classes.
_FILES = {
    "sklearn.neighbors": "neighbours",
    "sklearn.ensemble": "prefixes",
    "lightgbm": "boosting",
    "xgboost": "boosting",
    "sklearn.decomposition": "components",
}


def family_of(kind: type) -> Family | None:
    """The family of a class, None without one."""
    home = next((home for home in _FILES if f"{kind.__module__}.".startswith(f"{home}.")), None)
    if home is None or get_config()["array_api_dispatch"]:  # scikit-learn takes other ways then
        return None
    if getattr(import_module(home), kind.__name__, None) is not kind:
        return None
    families: dict[str, Family] = import_module(f"mpitune.sklearn.sharing.{_FILES[home]}").FAMILIES
    return families.get(kind.__name__)
