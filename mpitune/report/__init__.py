"""A study as one page to look at: `python -m mpitune report RESULTS`, and report.html at the end of every study.

    journal -> candidates.py, importance.py: what happened
    parts.py: what any study says     Experiment.reporting().sections: what an experiment adds
    chart_data.py: what report.js draws
    page.py: all of it -> report.html

report.js draws by Apache ECharts, which is in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mpitune.experiment import Experiment
    from mpitune.storage.history import History


def write_page(folder: Path, history: History, experiment: Experiment, data: Mapping[str, np.ndarray]) -> None:
    """Write report.html of a study that is done: the hook that studies hand to `mpitune.engine.rank.run`."""
    from mpitune.report.page import write_at_the_end  # which other studies need not import

    write_at_the_end(folder, history, experiment, data)
