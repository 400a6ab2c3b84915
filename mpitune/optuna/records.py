"""A trial of Optuna as JSON, for a journal and for the way to the workers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct
from optuna.distributions import BaseDistribution, CategoricalDistribution, distribution_to_json, json_to_distribution
from optuna.trial import FrozenTrial

from mpitune.identity import label_of
from mpitune.optimize.plain import NUMBER_MARK, is_json, plain, reading, whole
from mpitune.optimize.strategies.view import running

JOINT = "mpitune"  # the system attribute of a trial that was run here: how others saw it while it ran
# By name; no such dictionary stands for a number itself.
_Attrs = dict[Annotated[str, msgspec.Meta(pattern=f"^(?!{NUMBER_MARK}$)")], Any]


class Kept(Struct):
    """What a worker says of a trial that its objective has left, as JSON. Anyone may have written a journal with it."""

    number: int
    start: str
    complete: str
    params: dict[str, tuple[float, str]]
    steps: list[tuple[int, Any]]
    user_attrs: _Attrs
    system_attrs: _Attrs
    values: list[Any] | None
    state: Literal["COMPLETE", "PRUNED", "FAIL"]
    cause: str
    stopped: bool
    study: _Attrs  # new attributes of the study
    texts: list[str]  # user attributes of the trial and the study that are texts here


def kept_of(
    trial: FrozenTrial, values: list[float] | None, state: Any, cause: str, stopped: bool, study: Mapping[str, Any]
) -> Any:
    """A `Kept` of a trial, for a journal."""
    attrs = {**trial.user_attrs, **study}
    texts = [n for n, value in attrs.items() if type(value) is not str and isinstance(plain(value), str)]
    return plain(msgspec.structs.asdict(Kept(
        trial.number, str(trial.datetime_start), str(trial.datetime_complete),
        packed_params(trial.params, trial.distributions), list(trial.intermediate_values.items()),
        trial.user_attrs, trial.system_attrs, values, state.name, cause, stopped, dict(study), texts,
    )))  # fmt: skip


def read_kept(content: Any, number: int, n_values: int) -> tuple[FrozenTrial, list[float] | None, Any, Kept]:
    """The trial of this number, as one that runs; its values; new attributes of the study; all. Raises UsageError."""
    with reading("Optuna", number):
        kept = msgspec.convert(whole(content), Kept)
        params, distributions = unpacked_params(kept.params)
        trial = running(
            kept.number, params=params, distributions=distributions, user_attrs=kept.user_attrs,
            system_attrs=kept.system_attrs, intermediate_values=dict(kept.steps),
        )  # fmt: skip
        trial.datetime_start, trial.datetime_complete = map(datetime.fromisoformat, (kept.start, kept.complete))
        values = kept.values
        fit = values is None if kept.state != "COMPLETE" else values is not None and (
            len(values) == n_values and all(type(value) is float and value == value for value in values)
        )  # fmt: skip
        if trial.number != number or not fit:
            raise ValueError(f"number {trial.number}, {kept.state}, values {values}")
    return trial, values, kept.study, kept


def packed_params(params: Mapping[str, Any], drawn_from: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """Parameters with what they were drawn from, by Optuna's own numbers for them, since a category may be anything."""
    return {
        name: [float(drawn_from[name].to_internal_repr(value)), _text_of(drawn_from[name])]
        for name, value in params.items()
    }


def _text_of(drawn_from: BaseDistribution) -> str:
    """What it is, where JSON can say it; of other choices, such as tuples, their texts."""
    if says_all(drawn_from):
        return distribution_to_json(drawn_from)
    assert isinstance(drawn_from, CategoricalDistribution)
    texts = [f"{number}: {label_of(choice)}" for number, choice in enumerate(drawn_from.choices)]
    return distribution_to_json(CategoricalDistribution(texts))


def unpacked_params(record: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
    """The parameters, and what they were drawn from, of a record that is `whole`."""
    drawn_from = {name: json_to_distribution(text) for name, (_, text) in record.items()}
    return {n: drawn_from[n].to_external_repr(number) for n, (number, _) in record.items()}, drawn_from


def says_all(drawn_from: BaseDistribution) -> bool:
    """Whether JSON says all of it, the types of its choices as well."""
    return not isinstance(drawn_from, CategoricalDistribution) or is_json(list(drawn_from.choices))
