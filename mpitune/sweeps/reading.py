"""Reads a sweep file of Weights & Biases, as it is. What it must not have is refused by name, in one line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct, field

from mpitune.errors import UsageError, mended, named, needs
from mpitune.optimize.spaces import Space
from mpitune.optimize.spaces.parameters import shown
from mpitune.optimize.strategies import Strategy, strategy_of
from mpitune.sweeps.distributions import part_of
from mpitune.sweeps.program import MACRO, MACROS, NO_METRIC
from mpitune.sweeps.stopping import Bands, EarlyTerminate, Positive

MOST_BY_ALIASES = 100_000  # values of a file, where more than it has characters
USUAL = "${env}", "${interpreter}", "${program}", "${args}"  # the command
Paths = dict[str, tuple[str, ...]]
Whole = Annotated[int, Meta(ge=0)]
Method = Literal["grid", "random", "bayes"]
Goal = Literal["minimize", "maximize"]
Ours = Literal["grid", "random", "sobol", "tpe", "gp", "cmaes"]
ReadFrom = Literal["wandb", "json", "tensorboard"]
CHOICES = {"method": Method, "goal": Goal, "strategy": Ours, "read": ReadFrom}
WITHOUT_EFFECT = ("name", "description", "apiVersion", "kind", "controller")


class Metric(Struct, forbid_unknown_fields=True):
    """What is searched for."""

    name: str
    goal: Goal = "minimize"
    target: float | None = None


class Own(Struct, forbid_unknown_fields=True):
    """What stands below the key mpitune."""

    strategy: Ours | None = None
    seed: Whole = 0
    devices: Positive = 1
    nodes: Whole = 0
    read: ReadFrom | None = None


class Sweep(Struct, forbid_unknown_fields=True):
    """A sweep file, but keys that have no effect."""

    method: Method
    parameters: Annotated[dict[str, Any], Meta(min_length=1)]
    program: str = ""
    metric: Metric = field(default_factory=lambda: Metric(NO_METRIC))
    early_terminate: Bands | None = None
    command: Annotated[list[Any], Meta(min_length=1)] = field(default_factory=lambda: [*USUAL])
    run_cap: Positive | None = None
    mpitune: Own = field(default_factory=Own)
    project: str = ""
    entity: str = ""


Read = tuple[Sweep, Space, Paths, Strategy]


def read(path: Path) -> Read:
    """What a file says; its space, the place of each parameter, its strategy. Raises UsageError."""
    try:
        definition = parsed(lambda: _content(path), str(path))
        _check_command(definition[0], str(path))
        return definition
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): give a sweep file") from error


def parsed(content: Callable[[], Any], where: str) -> Read:
    """`read` of what a file, or a dictionary, says. Raises UsageError."""
    try:
        sweep = checked(content())
        parts, paths = dict[str, Any](), Paths()
        for at, keys in _flat(sweep.parameters):
            if (name := ".".join(at)) in paths:
                raise UsageError(f"parameters has {name} twice: keep one")
            try:
                parts[name], paths[name] = part_of(keys, sweep.method), at
            except (UsageError, ValueError, OverflowError) as error:
                raise UsageError(f"parameters.{name}: {error}") from error
        usual = "tpe" if sweep.method == "bayes" else sweep.method
        strategy, early = strategy_of(sweep.mpitune.strategy or usual), sweep.early_terminate
        if sweep.metric.name == NO_METRIC and (early or sweep.method == "bayes"):
            raise UsageError("it has no metric, which bayes and early_terminate need: give metric: {name: loss}")
        if early is not None:
            if not early.strict:
                raise UsageError("early_terminate.strict is false: bands are strict here, leave it out")
            if not (bands := early.upto()):
                raise UsageError("early_terminate has no band: give min_iter, or max_iter and s")
            strategy = EarlyTerminate(strategy, bands, early.eta)
        return sweep, Space(parts), paths, strategy
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{where}: it is nested too deeply, or contains itself") from error


def checked(content: Any) -> Sweep:
    """What a file says, by its types. Raises UsageError for what it must not have."""
    try:
        known = [name for name in content if name not in WITHOUT_EFFECT] if isinstance(content, dict) else ()
        return msgspec.convert({name: content[name] for name in known} if known else content, Sweep)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        at = place.strip(".`") or "it"
        if unknown := re.search(r"unknown field `(\w+)`", message):
            part: Any = {"metric": Metric, "early_terminate": Bands, "mpitune": Own}.get(at, Sweep)
            raise UsageError(f"{at} has {unknown[1]!r}: {mended(unknown[1], part.__struct_fields__)}") from error
        choices = CHOICES.get(at.rpartition(".")[2])
        fix = f": give {' or '.join(get_args(choices))}" if choices else ""
        raise UsageError(f"{at} is wrong, {message[:1].lower()}{message[1:].replace('`', '')}{fix}") from error


def _content(path: Path) -> Any:
    text = path.read_text(errors="replace")
    try:
        if path.suffix == ".json":
            return json.loads(text)
        with needs("pyyaml", '"mpitune[sweeps]"'):
            import yaml

        class Loader(yaml.SafeLoader):  # 1e-5 is a number and a date is a text, as in YAML 1.2
            known = yaml.SafeLoader.yaml_implicit_resolvers.items()
            yaml_implicit_resolvers = {k: [rule for rule in v if "timestamp" not in rule[0]] for k, v in known}

            def construct_mapping(self, node: Any, deep: bool = False) -> Any:
                keys = [key.value for key, _ in node.value]
                if twice := [key for key in keys if keys.count(key) > 1]:
                    raise ValueError(f"it has {twice[0]} twice")
                return super().construct_mapping(node, deep)

        number = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
        Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
        loader = Loader(text)
        if (node := loader.get_single_node()) is None:
            return None
        if _whole_size(node, {}) > max(MOST_BY_ALIASES, len(text)):
            raise ValueError(f"its aliases stand for more than {MOST_BY_ALIASES:,} values")
        content = loader.construct_document(node)
        json.dumps(content)  # raises for what a program could not be given
        return content
    except (UsageError, RecursionError):
        raise
    except Exception as error:  # of both readers, which say where
        raise UsageError(f"it cannot be read: {error}") from error


def _whole_size(node: Any, known: dict[Any, int]) -> int:
    """How many nodes of YAML there are with all aliases written out. Raises RecursionError for what contains itself."""
    if isinstance(node.value, str):
        return 1
    if node not in known:
        inside = [part for each in node.value for part in (each if isinstance(each, tuple) else (each,))]
        known[node] = 1 + sum(_whole_size(part, known) for part in inside)
    return known[node]


def _flat(parameters: Mapping[str, Any], outer: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The parameters with the place of each; those of a group are inside it."""
    for name, keys in parameters.items():
        at = (*outer, str(name))
        if not isinstance(keys, dict):
            fix = f"write {{value: {keys}}}, or values, or min and max"
            raise UsageError(f"parameters.{'.'.join(at)} is {shown(keys)}: {fix}")
        inside = keys.get("parameters") if keys.keys() == {"parameters"} else None
        yield from _flat(inside, at) if isinstance(inside, dict) else [(at, keys)]


def _check_command(sweep: Sweep, where: str) -> None:
    """Raise UsageError for a macro or a program that there is not."""
    for word in map(str, sweep.command):
        for macro in MACRO.finditer(word):
            if not macro[1].startswith("envvar:") and (macro[1] not in MACROS or macro[0] != word):
                raise UsageError(f"{where}: command has {word}: give words of their own, of {named(MACROS)}")
    if "${program}" in sweep.command and not os.path.isfile(program := sweep.program):
        fix = "start where it is, or give its path"
        raise UsageError(f"{where}: program: {program or 'none'} is not in {os.getcwd()}: {fix}")
