"""How the tasks that one worker does together may be divided, and what they cost beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from mpitune.sklearn.fits.fit_graph import StepFit
from mpitune.sklearn.fits.grouping import Grouping
from mpitune.sklearn.fits.task import Task

MOST_PARTS = 32  # of a batch; a part can be divided in its turn
SETTING = 0.01  # cost of a setting, beside that of the fit of a step which serves it


def parts_of(tasks: Mapping[int, Task], grouping: Grouping, *, within: bool) -> list[tuple[str, ...]]:
    """The keys of the tasks of one split in parts, each of which a worker can do without the others.

    Those that share the fit of the last step are a part. `within`: whether such a fit is divided too, into the parts of
    its family.
    """
    ends = [end for fit in grouping.graph_of(tasks) for end in fit.ends]
    groups = [end.candidates for end in ends]
    if within and len(ends) == 1 and (family := ends[0].family) is not None:
        settings = ends[0].settings
        parts = family.parts(ends[0].model, [setting.values for setting in settings])
        groups = [tuple(number for place in places for number in settings[place].candidates) for places in parts]
    n = min(len(groups), MOST_PARTS)
    bounds = [len(groups) * i // n for i in range(n + 1)]  # neighbouring groups are joined
    return [tuple(tasks[number].key for group in groups[a:b] for number in group) for a, b in pairwise(bounds)]


def shared_cost_of(tasks: Mapping[int, Task], grouping: Grouping) -> float:
    """The cost of what the parts of these tasks have in common, see `parts_of`."""
    fits, cost = grouping.graph_of(tasks), 0.0
    while len(fits) == 1:
        cost += fits[0].model is not None
        fits = fits[0].below
    return cost


def costs_of(grouping: Grouping) -> tuple[dict[int, float], frozenset[int]]:
    """The cost of each candidate on a split, in fits of a step, and whose fit of the last step may be divided.

    A fit counts in equal parts with the candidates that it serves, and not at all if it serves all of a batch: see
    `shared_cost_of`. Which fits take longer is not known before; but an ensemble's cost grows with its members. A fit
    of the last step may be divided if it is the only one below a first fit.
    """
    costs: dict[int, float] = {}
    single: list[int] = []
    for fit in grouping.graph_of(grouping.sharers):
        if len(fit.candidates) > 1:
            costs.update(dict.fromkeys(fit.candidates, 0.0))
            _add_costs([fit], costs, of_all=True)
            single += fit.candidates if len(list(fit.ends)) == 1 else ()
    for number, task in grouping.first.items():
        if number not in costs:
            members = [v for name, v in task.parameters.items() if name.endswith("n_estimators") and type(v) is int]
            costs[number] = float(max([1, *members]))
    return costs, frozenset(single)


def _add_costs(fits: Sequence[StepFit], costs: dict[int, float], of_all: bool) -> None:
    """of_all: whether the fit before these serves all candidates of the batch."""
    of_all = of_all and len(fits) == 1
    for fit in fits:
        own = 0.0 if of_all or fit.model is None else 1.0 / len(fit.candidates)
        for number in fit.candidates:
            costs[number] += SETTING + own
        _add_costs(fit.below, costs, of_all)
