"""What a family of estimators has to say, and the samples of one split."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sklearn.utils._param_validation import validate_parameter_constraints

Transformed = tuple[Any, Callable[[], Any]]  # a fitted transformer, and what gives the samples it was fitted to
Settings = Sequence[Mapping[str, Any]]  # for each candidate, the values of the parameters in which they differ


@dataclass(frozen=True)
class SplitPart:
    """The samples of one split as a step sees them."""

    X: Any  # which the step is fitted to, with y and weight
    y: Any
    weight: Any  # may be None
    X_test: Any  # the validation samples
    y_test: Any
    X_train: Any = None  # the training samples as a scorer asks about them; None where none does
    again: bool = False  # whether X or X_test are asked about again, as they are then, after a step was given them

    @property
    def scored(self) -> list[Any]:
        """The objects with samples that scorers will ask a model about."""
        return [self.X_test] if self.X_train is None else [self.X_test, self.X_train]

    @property
    def weights(self) -> dict[str, Any]:
        """Keyword arguments of `fit`."""
        return {} if self.weight is None else {"sample_weight": self.weight}


class Family(ABC):
    """Estimators of one class that one fit serves, where they differ in the parameters `shared` alone."""

    shared: ClassVar[frozenset[str]]
    # Whether it also fits one candidate, better than the estimator itself.
    single: ClassVar[bool] = False

    def shares(self, name: str) -> bool:
        """Whether candidates may differ in the parameter of that name."""
        return name in self.shared

    def why_not(self, model: Any) -> str | None:
        """Why candidates with the other parameters of this unfitted model share nothing; None where they do."""
        return None

    def parts(self, model: Any, settings: Settings) -> list[list[int]]:
        """The smallest groups of settings, by place, whose results do not depend on which others are fitted with them.

        So that slots which would be idle can have some of them, and results are bitwise the same.
        """
        return [[place] for place in range(len(settings))]

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        """A fitted model for each candidate's settings; None for one that must be fitted alone. For the last step.

        The unfitted model has the parameters that all have in common. It is not changed. A fitted model may answer for
        the very objects `part.scored` from what is known. An exception of any kind: all must be fitted alone.
        """
        raise NotImplementedError

    def fit_transform(self, model: Any, settings: Settings, part: SplitPart) -> list[Transformed | None]:
        """The same for a step before the last: each fitted transformer, and what gives `part.X` as it transforms it.

        So only the samples of one setting are in memory at a time.
        """
        raise NotImplementedError


def valid(model: Any, setting: Mapping[str, Any]) -> bool:
    """Whether scikit-learn accepts the values of a candidate, and those of the model."""
    constraints = model._parameter_constraints
    values = {name: value for name, value in vars(model).items() if name in constraints} | dict(setting)
    try:
        validate_parameter_constraints(constraints, values, type(model).__name__)
    except (TypeError, ValueError):
        return False
    return True
