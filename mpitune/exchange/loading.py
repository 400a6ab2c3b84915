"""`mpitune.load`: a study as a table and arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpitune.errors import named, needs
from mpitune.storage.history import read_study, studies_in
from mpitune.storage.trials import ExportedTrial, read

if TYPE_CHECKING:
    import pandas

    from mpitune.figures.winner import Winner


@dataclass(frozen=True, eq=False, repr=False)
class LoadedStudy:
    """What `load` gives: `trials, arrays = load(folder)` takes the two.

    Attributes:
        trials: A row for each trial, by its key: state, param_..., value_..., seconds, ended (UTC),
            peak_bytes, host, rank, slot, device, attempt, error ("" without one). NaN for what is not there, NaT for a
            time. Before the first trial it has no rows.
        arrays: Of each trial that has any, by its key; each is read from disk when it is asked for.
        folder: Of the study.
    """

    trials: pandas.DataFrame
    arrays: Mapping[str, Mapping[str, np.ndarray]]
    folder: Path

    def __iter__(self) -> Iterator[Any]:
        return iter((self.trials, self.arrays))

    @property
    def winner_(self) -> Winner | None:
        """What the best candidate is worth; None without two candidates and folds and a goal, or of outer folds."""
        from mpitune.exchange.programs import experiment_of
        from mpitune.report.page import report_of

        *others, folder = studies_in(self.folder)
        if others and folder.name.startswith("data-"):
            return None
        experiment, history = None, read_study(folder)
        with suppress(Exception):  # of a program's own part: the journal may be anybody's
            experiment = experiment_of(history)
        return report_of(folder, history, experiment, None).winner

    def __repr__(self) -> str:
        states = ", ".join(f"{n} {state}" for state, n in self.trials["state"].value_counts().items())
        columns = [name for name in self.trials if name.startswith(("param_", "value_"))]
        arrays = f", arrays of {len(self.arrays)} in .arrays" if self.arrays else ""
        return f"<{len(self.trials)} trials ({states}) in .trials, a table with {named(columns)}{arrays}>"


def load(results: str | Path) -> LoadedStudy:
    """The trials of a study with their arrays, of an unfinished one too.

    Args:
        results: The results folder.

    Returns:
        `trials, arrays = load("results/mnist_svm")`, see `LoadedStudy`.

    Raises:
        UsageError: There is no study, its journal is damaged, or pandas is not installed.

    Example:
        >>> import tempfile
        >>> from mpitune import Int, load, search
        >>> folder = tempfile.mkdtemp()
        >>> how = dict(strategy="grid", minimize="loss", workers=0, results=folder)
        >>> study = search(lambda trial: {"loss": trial.params["n"] ** 2}, {"n": Int(0, 2)}, **how)
        3 trials: 3 complete
        the best:
          trial 0: loss 0 with n=0
        time taken: ...
        results: ...
        >>> trials, arrays = load(folder)
        >>> trials[["param_n", "value_loss"]].values.tolist()
        [[0.0, 0.0], [1.0, 1.0], [2.0, 4.0]]
    """
    study = read(Path(results))
    with needs("pandas", "pandas"):
        import pandas
    rows = [{name: math.nan if value is None else value for name, value in row.items()} for row in study.rows()]
    columns = None if rows else list(ExportedTrial(0, {}, {}, "").row())
    table = pandas.DataFrame(rows, columns=columns).astype(dict.fromkeys(("seconds", "peak_bytes"), float))
    table["ended"] = pandas.to_datetime(table["ended"], unit="s", utc=True)
    arrays = {trial.key: trial.last.arrays for trial in study.trials if trial.last.arrays}
    return LoadedStudy(table.set_index("key"), arrays, Path(results))
