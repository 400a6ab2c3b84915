"""What a notebook shows of a fitted search below scikit-learn's diagram: how it ended, the best, a picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpitune.optimize import notebook
from mpitune.optimize.search_study import TrialRecord
from mpitune.optimize.spaces.parameters import short
from mpitune.trial import COMPLETE


def html_of(search: Any) -> str:
    """A fitted search as HTML."""
    table = search.cv_results_
    metrics = [name.removeprefix("rank_test_") for name in table if name.startswith("rank_test_")]
    refit = getattr(search.refit, "metric", search.refit)
    metric = refit if isinstance(refit, str) and refit in metrics else metrics[0]
    name = f"mean_test_{metric}"
    scores, params = table[name], table["params"]
    iterations = 1 + int(max(table.get("iter", [0])))  # a halving search has several
    fine = [n for n in range(len(scores)) if np.isfinite(scores[n])]
    whole = [TrialRecord(n, params[n], {name: float(scores[n])}, COMPLETE) for n in fine]
    missing = int((table["n_splits_evaluated"] < search.n_splits_).sum()) if "n_splits_evaluated" in table else 0
    failed = len(scores) - len(whole) - missing
    why = "left by the race" if search.race is not None else "not evaluated"
    count = f"{len(scores)} candidate{'s' * (len(scores) != 1)}"
    count += f" in {iterations} iterations" * (iterations > 1)
    lines = [count + f", {failed} of them failed" * (failed > 0) + f", {missing} {why}" * (missing > 0)]
    if (winner := getattr(search, "winner_", None)) is not None:
        lines.append(f"{name}, {winner}")
    elif fine:
        best = min(fine, key=table[f"rank_test_{metric}"].__getitem__)
        chosen = ", ".join(f"{key}={short(value)}" for key, value in params[best].items())
        lines.append(f"{name}, the best: {chosen or 'candidate 0'}: {scores[best]:.6g}")
    return notebook.html_of("\n".join(lines), {name: True}, whole, "candidate")
