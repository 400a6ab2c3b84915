"""Reads a sweep file of Weights & Biases, as it is. What it must not have is refused by name, in one line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mpitune.errors import UsageError, mended, named, needs
from mpitune.optimize.spaces import Space
from mpitune.optimize.spaces.parameters import shown
from mpitune.optimize.strategies import Strategy, strategy_of
from mpitune.sweeps.distributions import part_of
from mpitune.sweeps.program import MACRO, MACROS, NO_METRIC
from mpitune.sweeps.stopping import EarlyTerminate, bands_of

SCHEMA = json.loads(Path(__file__).with_name("sweep.schema.json").read_text())
KINDS: dict[str, Any] = {"nested": SCHEMA["definitions"]["nested"]}  # what a parameter of each distribution may have
for _rule in SCHEMA["definitions"].values():
    KINDS.update(dict.fromkeys(_rule.get("properties", {}).get("distribution", {}).get("enum", ()), _rule))
TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": int | float,
}  # fmt: skip
MOST_BY_ALIASES = 100_000  # values of a file, where more than it has characters
Paths = dict[str, tuple[str, ...]]


def read(path: Path) -> tuple[dict[str, Any], Space, Paths, Strategy]:
    """What a file says, with the schema's defaults; its space, the place of each parameter, its strategy.

    Raises UsageError.
    """
    try:
        content = checked("", _content(path), SCHEMA)
        parts, paths = dict[str, Any](), Paths()
        for at, part in _flat(content["parameters"]):
            if (name := ".".join(at)) in paths:
                raise UsageError(f"parameters has {name} twice: keep one")
            try:
                parts[name], paths[name] = part_of(_kind(part), part, content["method"]), at
            except (UsageError, ValueError, OverflowError) as error:
                raise UsageError(f"parameters.{name}: {error}") from error
        _check_command(content["command"], content.get("program", ""))
        usual = {"bayes": "tpe"}.get(content["method"], content["method"])
        strategy = strategy_of(content["mpitune"].get("strategy", usual))
        early = content.get("early_terminate")
        if "metric" not in content:
            if early or content["method"] == "bayes":
                raise UsageError("it has no metric, which bayes and early_terminate need: give metric: {name: loss}")
            content["metric"] = {"name": NO_METRIC, "goal": "minimize"}
        if early:
            if not (bands := bands_of(early)):
                raise UsageError("early_terminate has no band: give min_iter, or max_iter and s")
            strategy = EarlyTerminate(strategy, bands, early["eta"])
        return content, Space(parts), paths, strategy
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: it is nested too deeply, or contains itself") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): give a sweep file") from error


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


def checked(where: str, value: Any, rule: Mapping[str, Any]) -> Any:
    """What is given there, with defaults. Raises UsageError unless it is as the schema says."""
    what = where or "it"
    if "$ref" in rule:
        rule = SCHEMA["definitions"][rule["$ref"].rpartition("/")[2]]
    if "anyOf" in rule:
        if not isinstance(value, dict):
            raise UsageError(f"{what} is {shown(value)}: write {{value: {value}}}, or values, or min and max")
        if (kind := _kind(value)) not in KINDS:
            raise UsageError(f"{what} has distribution {shown(kind)}: give one of {named([*KINDS][1:])}")
        rule = KINDS[kind]
    if "not" in rule:
        raise UsageError(f"{what} is not supported: {rule['description']}")
    kind = rule.get("type", "")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        kind = {"object": "names with values", "array": "a list"}.get(kind, f"a value of type {kind}")
        raise UsageError(f"{what} is {'empty' if value is None else shown(value)}: give {kind}")
    if "enum" in rule and value not in rule["enum"]:
        raise UsageError(f"{what} is {shown(value)}: give {' or '.join(rule['enum'])}")
    low, above = rule.get("minimum"), rule.get("exclusiveMinimum")
    if (low is not None and value < low) or (above is not None and value <= above):
        raise UsageError(f"{what} is {value}: give " + (f"at least {low}" if above is None else f"more than {above}"))
    if kind == "array" and len(value) < rule.get("minItems", 0):
        raise UsageError(f"{what} is empty: give it at least one")
    for n, each in enumerate(value if "items" in rule else ()):
        checked(f"{where}[{n}]", each, rule["items"])
    return _checked_inside(where, value, rule) if kind == "object" else value


def _checked_inside(where: str, section: dict[str, Any], rule: Mapping[str, Any]) -> dict[str, Any]:
    what, known = where or "it", rule.get("properties", {})
    if len(section) < rule.get("minProperties", 0):
        raise UsageError(f"{what} is empty: give it at least one")
    whole = {key: each["default"] for key, each in known.items() if "default" in each}
    for key, value in section.items():
        inside = known.get(key, rule.get("additionalProperties", {}))
        if inside is False:
            raise UsageError(f"{what} has {key!r}: {mended(key, known)}")
        whole[key] = checked(f"{where}.{key}".lstrip("."), value, inside)
    if missing := [key for key in rule.get("required", ()) if key not in section]:
        raise UsageError(f"{what} has no {missing[0]}: it needs {named(rule['required'])}")
    return whole


def _kind(part: Mapping[str, Any]) -> str:
    """The definition of a parameter: its distribution, or the one that it has by its keys."""
    if "distribution" in part or "parameters" in part:
        return str(part.get("distribution", "nested"))
    if "value" in part or "values" in part:
        return "constant" if "value" in part else "categorical" + "_w_probabilities" * ("probabilities" in part)
    return "int_uniform" if all(isinstance(part.get(end, 0), int) for end in ("min", "max")) else "uniform"


def _flat(
    parameters: Mapping[str, Any], outer: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """The parameters with the place of each; those of a group are inside it."""
    for name, part in parameters.items():
        at = (*outer, str(name))
        yield from _flat(part["parameters"], at) if "parameters" in part else [(at, part)]


def _check_command(command: list[Any], program: str) -> None:
    """Raise UsageError for a macro that there is not, a program that is not there or lacks W&B."""
    for word in map(str, command):
        for macro in MACRO.finditer(word):
            if not macro[1].startswith("envvar:") and (macro[1] not in MACROS or macro[0] != word):
                raise UsageError(f"command has {word}: give words of their own, of {named(MACROS)}")
    if "${program}" in command and not os.path.isfile(program):
        raise UsageError(f"program: {program or 'none'} is not in {os.getcwd()}: start where it is, or give its path")
    if {"${program}", "${interpreter}"} <= {*map(str, command)} and find_spec("wandb") is None:
        text = Path(program).read_text(errors="replace")
        if re.search(r"^\s*(import|from) wandb\b", text, re.MULTILINE):
            raise UsageError(f"{program} imports wandb, which is not installed: pip install wandb")
