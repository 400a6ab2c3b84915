"""A fitted candidate scored as scikit-learn's function that fits and scores does it."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from typing import Any

from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics._scorer import _BaseScorer, _MultimetricScorer, _PassthroughScorer
from sklearn.model_selection import _validation
from sklearn.utils.validation import _num_samples


@dataclass(frozen=True)
class FittedModel:
    """A fitted model, or the error that `fit` raised, and the seconds that it took."""

    model: Any
    error: Exception | None
    seconds: float


def answer(task: Any, fitted: FittedModel, parts: Any, labels: Any) -> dict[str, Any]:
    """As scikit-learn's function that fits and scores.

    Args:
        task: see `Task`.
        fitted: the model that the scorers are asked with.
        parts: training and validation samples as the model is asked about them.
        labels: of both.
    """
    kwargs = task.kwargs
    scorer, error_score = kwargs["scorer"], kwargs["error_score"]
    both = (("test", parts[1], labels[1]), ("train", parts[0], labels[0]))[: 1 + kwargs["return_train_score"]]
    what: dict[str, Any] = {"fit_time": fitted.seconds, "n_test_samples": _num_samples(parts[1])}
    begin = time.perf_counter()
    error = fitted.error or _gave_up(fitted.model)
    if error is not None:
        if error_score == "raise":
            raise error
        several = isinstance(scorer, _MultimetricScorer)
        for name, _, _ in both:
            what[f"{name}_scores"] = dict.fromkeys(scorer._scorers, error_score) if several else error_score
        what["fit_error"] = "".join(traceback.format_exception(error))
        return {**what, "score_time": 0.0}
    for name, samples, truth in both:
        params = _validation._check_method_params(task.args[0], params=kwargs["score_params"], indices=kwargs[name])
        what[f"{name}_scores"] = _validation._score(fitted.model, samples, truth, scorer, params, error_score)
        what.setdefault("score_time", time.perf_counter() - begin)
    return {**what, "fit_error": None}


def _gave_up(model: Any) -> Exception | None:
    """A warning for an SVC without a limit of iterations that reached the solver's own."""
    if getattr(model, "fit_status_", 0) and model.max_iter == -1:
        return ConvergenceWarning(
            "the fit did not end within the solver's own limit of iterations: scale the samples, or set max_iter to "
            "have a score anyway"
        )
    return None


def standard(scorer: Any) -> bool:
    """Whether it asks the estimator for predictions only."""
    if isinstance(scorer, _MultimetricScorer):
        return all(map(standard, scorer._scorers.values()))
    own = type(scorer).__module__.startswith("sklearn.")  # not a class of the user's
    return own and isinstance(scorer, _BaseScorer | _PassthroughScorer)
