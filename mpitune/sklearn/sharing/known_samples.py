"""Regressions that answer for samples of which the prediction is known."""

from __future__ import annotations

from typing import Any

import numpy as np


class KnowsPredictions:
    """A fitted regression that does so; it comes before scikit-learn's class."""

    _known: tuple[tuple[Any, np.ndarray], ...] = ()  # samples, as the model will be asked about them, and predictions

    def predict(self, X: Any) -> Any:
        prediction = next((prediction for asked, prediction in self._known if asked is X), None)
        return super().predict(X) if prediction is None else prediction  # type: ignore[misc]
