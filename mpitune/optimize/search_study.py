"""What a search has found: every trial, the best, the Pareto front, a report, tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpitune.errors import UsageError, needs
from mpitune.figures.winner import best_of, front_of
from mpitune.identity import label_of, texts_of
from mpitune.optimize.spaces.parameters import short
from mpitune.storage.table import named_columns, write_table
from mpitune.storage.trials import TrialRecord
from mpitune.trial import COMPLETE, FAILED, INFEASIBLE, PRUNED

if TYPE_CHECKING:
    import pandas

STATES = COMPLETE, INFEASIBLE, PRUNED, FAILED


class SearchStudy:
    """The trials of a search, in the order of their numbers.

    Attributes:
        trials: A `TrialRecord` of each.
        objectives: Names of the values that were searched for, True for those maximized.
        folder: Where the study is kept, None where it is not.
        window: Such as "window 4"; "" where trials do not depend on it.
    """

    def __init__(
        self, trials: list[TrialRecord], objectives: Mapping[str, bool], folder: Path | None = None, window: str = ""
    ):
        self.trials = sorted(trials, key=lambda trial: trial.number)
        self.objectives, self.folder, self.window = dict(objectives), folder, window

    def __len__(self) -> int:
        return len(self.trials)

    def __repr__(self) -> str:
        return f"<SearchStudy of {len(self)} trials for {', '.join(self.objectives)}: report() tells more>"

    @property
    def best(self) -> TrialRecord:
        """The complete trial with the best value, the first of equal ones.

        Raises:
            UsageError: no trial is complete, or there are several objectives.
        """
        if len(self.objectives) > 1:
            raise UsageError(f"there is no best trial for {' and '.join(self.objectives)} together: use study.pareto")
        ((name, maximized),) = self.objectives.items()
        best = best_of(self.trials, lambda trial: -trial.values[name] if maximized else trial.values[name])
        if best is None and any(trial.state == INFEASIBLE for trial in self.trials):
            raise UsageError("no complete trial fulfils the constraints: give more trials, or weaker constraints")
        if best is None:
            failed = next((trial.error for trial in self.trials if trial.state == FAILED), "")
            pruned = any(trial.state == PRUNED for trial in self.trials)
            why = f", the first that failed says: {failed}" if failed else ""
            fix = ": the strategy stopped all others early, give it more trials or fewer stages" if pruned else ""
            raise UsageError(f"no trial is complete{why}{fix}")
        return best

    @property
    def pareto(self) -> list[TrialRecord]:
        """The complete trials that no other is better than in one objective and as good as in all."""
        return sorted(front_of(self.trials, self.objectives), key=lambda trial: trial.number)

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each trial, by its number, as `rows` gives them. Raises UsageError without pandas."""
        with needs("pandas", "pandas"):
            import pandas
        return pandas.DataFrame(self.rows()).set_index("number")

    def rows(self) -> list[dict[str, Any]]:
        """A row for each trial, all with the columns number, state, `param_<name>`, `value_<name>`, seconds, error."""
        params = list(dict.fromkeys(name for trial in self.trials for name in trial.params))
        values = list(dict.fromkeys(name for trial in self.trials for name in trial.values))
        return [
            {
                "number": trial.number,
                "state": trial.state,
                **named_columns({n: trial.params.get(n) for n in params}, {n: trial.values.get(n) for n in values}),
                "seconds": round(trial.seconds, 6),
                "error": trial.error,
            }
            for trial in self.trials
        ]

    def write(self, path: Path) -> None:
        """The rows as a CSV file, without the seconds: the same bytes on any layout.

        Options that are no numbers or texts have their names, and digits of their content where two have one name.
        """
        rows = [{name: value for name, value in row.items() if name != "seconds"} for row in self.rows()]
        no_numbers = (
            {name: value for name, value in trial.params.items() if type(value) not in (float, int, bool)}
            for trial in self.trials
        )
        labels = [{name: label_of(value) for name, value in params.items()} for params in no_numbers]
        texts = texts_of(label for each in labels for label in each.values())
        for row, trial, each in zip(rows, self.trials, labels, strict=True):
            for name, label in each.items():
                value = trial.params[name]
                row[f"param_{name}"] = value if isinstance(value, str) else texts.get(label, label)
        write_table(path, rows)

    def report(self) -> str:
        """A few lines for people: how many trials there are, and the best of them."""
        states = [trial.state for trial in self.trials]
        counts = ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states)
        lines = [f"{len(self.trials)} trials: {counts}" if self.trials else "no trials"]
        best = self.pareto if len(self.objectives) > 1 else [self.best] if COMPLETE in states else []
        lines += ["the Pareto front:" if len(self.objectives) > 1 else "the best:"] if best else []
        for trial in best[:20]:
            values = ", ".join(f"{name} {trial.values[name]:.6g}" for name in self.objectives)
            params = ", ".join(f"{name}={short(value)}" for name, value in trial.params.items())
            lines.append(f"  trial {trial.number}: {values} with {params}")
        first = next((trial for trial in self.trials if trial.state == FAILED), None)
        if first is not None and len(states) > states.count(FAILED):  # else the search raises, and says it
            lines.append(f"the first that failed, trial {first.number}: {first.error}")
        return "\n".join([*lines, self.window] if self.window else lines)
