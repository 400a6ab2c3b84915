"""What writes a whole study: tables, and a journal file of Optuna."""

from __future__ import annotations

import datetime
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mpitune.errors import needs
from mpitune.storage.files import written_whole
from mpitune.storage.table import write_table
from mpitune.storage.trials import ExportedStudy, ExportedTrial
from mpitune.trial import COMPLETE, FAILED, INFEASIBLE


def to_csv(study: ExportedStudy, into: Path) -> None:
    """A row for each trial, the columns of `ExportedStudy.rows`; empty for missing values."""
    write_table(into, study.rows())


def to_json(study: ExportedStudy, into: Path) -> None:
    """One object: study, the journal's header, objectives, trials with their steps. Infinity is the text "inf"."""
    nested = "params", "values", "steps", "user_attrs", "constraints"
    trials = [
        {name: value for name, value in trial.row().items() if not name.startswith(("param_", "value_"))}
        | {name: getattr(trial, name) for name in nested}
        for trial in study.trials
    ]
    content = {"study": study.name, "header": study.header, "objectives": study.objectives, "trials": trials}
    with written_whole(into, "w") as file:
        json.dump(_with_texts(content), file, indent=1, allow_nan=False)
        file.write("\n")


def _with_texts(thing: Any) -> Any:
    if isinstance(thing, float) and not math.isfinite(thing):
        return str(thing)
    if isinstance(thing, Mapping):
        return {name: _with_texts(value) for name, value in thing.items()}
    return [_with_texts(item) for item in thing] if isinstance(thing, list | tuple) else thing


def to_optuna(study: ExportedStudy, into: Path) -> None:
    """Write `into`, which `optuna.storages.JournalStorage` reads, and `optuna-dashboard` shows.

    What Optuna has no place for are user attributes, too: other values, run/key, run/place, run/seconds, run/error. A
    distribution is the range of a parameter, or its values where they are texts. A trial with an infinite value is a
    failed one there.

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
    values: dict[str, list[Any]] = {}
    for trial in study.trials:
        for name, value in trial.params.items():
            values.setdefault(name, []).append(value)
    ranges = {name: _range(optuna.distributions, there) for name, there in values.items()}
    made.add_trials([_frozen(optuna.trial, trial, list(study.objectives), ranges) for trial in study.trials])


def _range(distributions: Any, there: Sequence[Any]) -> Any:
    kinds = {type(value) for value in there}
    if kinds <= {int}:
        return distributions.IntDistribution(min(there), max(there))
    if kinds <= {int, float}:
        low, high = float(min(there)), float(max(there))
        return distributions.FloatDistribution(low, high, log=low > 0 and high > 100 * low)
    return distributions.CategoricalDistribution(sorted(set(there), key=repr))


def _frozen(of: Any, trial: ExportedTrial, names: Sequence[str], ranges: Mapping[str, Any]) -> Any:
    values = [trial.values.get(name, math.nan) for name in names]
    finite = all(map(math.isfinite, values))
    failed = trial.state == FAILED or (trial.state in (COMPLETE, INFEASIBLE) and not finite)
    state = "FAIL" if failed else "COMPLETE" if trial.state in (COMPLETE, INFEASIBLE) else "PRUNED"
    facts = {**trial.user_attrs, "run/key": trial.key, "run/place": str(trial.last.place)}
    facts |= {**trial.measured, **trial.values, **({"run/error": trial.error} if trial.error else {})}
    steps = {step: some[names[0]] for step, some in trial.steps.items() if names[0] in some and len(names) == 1}
    made = of.create_trial(
        state=of.TrialState[state],
        values=None if failed or not finite else values,
        params=dict(trial.params),
        distributions={name: ranges[name] for name in trial.params},
        user_attrs=_with_texts(facts),
        system_attrs={"constraints": list(trial.constraints)} if trial.constraints else {},
        intermediate_values=steps,
    )
    if trial.begun is not None and trial.ended is not None:
        made.datetime_start, made.datetime_complete = map(datetime.datetime.fromtimestamp, (trial.begun, trial.ended))
    return made


# What writes a format, and the name in the results folder that it gets if no other is given.
FORMATS: dict[str, tuple[Callable[[ExportedStudy, Path], None], str]] = {
    "csv": (to_csv, "export.csv"),
    "json": (to_json, "export.json"),
    "optuna": (to_optuna, "optuna.log"),
}
