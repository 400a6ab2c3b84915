"""A study for Optuna and its dashboard: a journal file of its own storage."""

from __future__ import annotations

import datetime
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpitune.export.extras import needs
from mpitune.export.trials import ExportedStudy, ExportedTrial
from mpitune.optimize.search_study import COMPLETE, FAILED


def to_optuna(study: ExportedStudy, into: Path) -> None:
    """Write `into`, which `optuna.storages.JournalStorage` reads, and `optuna-dashboard` shows.

    What Optuna has no place for are user attributes: other values, key, place, seconds, error. A distribution is the
    range of a parameter, or its values where they are texts. A trial with an infinite value is a failed one there.

    Args:
        study: What is exported, with at least one objective.
        into: The file, which must not exist.
    """
    with needs("optuna"):
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    directions = ["maximize" if up else "minimize" for up in study.objectives.values()]
    storage = JournalStorage(JournalFileBackend(str(into)))
    made = optuna.create_study(storage=storage, study_name=study.name, directions=directions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names of objectives are experimental there, and no more than names
        made.set_metric_names(list(study.objectives))
    distributions = _distributions(study.trials)
    made.add_trials([_trial(optuna, trial, list(study.objectives), distributions) for trial in study.trials])


def _trial(optuna: Any, trial: ExportedTrial, names: Sequence[str], distributions: Mapping[str, Any]) -> Any:
    values = [trial.values.get(name, math.nan) for name in names]
    state = {COMPLETE: "COMPLETE", FAILED: "FAIL"}.get(trial.state, "PRUNED")
    if state == "COMPLETE" and not all(map(math.isfinite, values)):
        state = "FAIL"
    facts = {"key": trial.key, "place": str(trial.last.place), "seconds": trial.seconds, **trial.used, **trial.values}
    made = optuna.trial.create_trial(
        state=optuna.trial.TrialState[state],
        values=values if state == "COMPLETE" else None,
        params=dict(trial.params),
        distributions={name: distributions[name] for name in trial.params},
        user_attrs={k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in facts.items()}
        | ({"error": trial.error} if trial.error else {}),
        intermediate_values={
            step: values[names[0]] for step, values in trial.steps.items() if names[0] in values
        } if len(names) == 1 else {},
    )  # fmt: skip
    if trial.begun is not None and trial.ended is not None:
        made.datetime_start, made.datetime_complete = map(datetime.datetime.fromtimestamp, (trial.begun, trial.ended))
    return made


def _distributions(trials: Sequence[ExportedTrial]) -> dict[str, Any]:
    """The range of each parameter, or its values."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    values: dict[str, list[Any]] = {}
    for trial in trials:
        for name, value in trial.params.items():
            values.setdefault(name, []).append(value)
    distributions: dict[str, Any] = {}
    for name, there in values.items():
        kinds = {type(value) for value in there}
        if kinds <= {int}:
            distributions[name] = IntDistribution(min(there), max(there))
        elif kinds <= {int, float}:
            low, high = float(min(there)), float(max(there))
            distributions[name] = FloatDistribution(low, high, log=low > 0 and high > 100 * low)
        else:
            distributions[name] = CategoricalDistribution(sorted(set(there), key=repr))
    return distributions
