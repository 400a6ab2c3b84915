"""Frozen dataclasses as command lines: every field made by `setting` is an option or a positional."""

from __future__ import annotations

import argparse
import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn

from mpitune.errors import Exit, UsageError, print_error
from mpitune.identity import label_of

MOST_SECONDS = 10**9  # seconds, some 32 years: the most that is taken for a time


def setting(
    default: Any = MISSING,
    help: str = "",
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] | None = None,
    changes_results: bool = True,
    selects: bool = False,
    flag: str | None = None,
    metavar: str | None = None,
    group: str = "",
    advanced: bool = False,
) -> Any:
    """A dataclass field that is also a command-line argument.

    Args:
        default: of the option `--its-name`; without a default the argument is positional.
        help: for `--help`.
        low: smallest value allowed.
        high: largest value allowed.
        choices: the texts allowed.
        changes_results: False for what may differ when a study is continued.
        selects: True for what only decides which trials there are: a study of another value may use known results.
        flag: spelling of the option; several are separated by "/".
        metavar: what stands for the value in the help.
        group: heading of the help that the option stands under.
        advanced: True for an option that only `--help-all` shows.
    """
    metadata = dict(
        help=help, low=low, high=high, choices=choices, changes_results=changes_results, selects=selects, flag=flag,
        metavar=metavar, group=group, advanced=advanced,
    )  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


def window_of(header: Mapping[str, Any]) -> str:
    """The window of a search, such as "window 4", from its header; "" where trials do not depend on it."""
    settings: Mapping[str, Any] = header["settings"] if header.get("kind") == "search" else {}
    return f"window {size}" if (size := settings.get("window")) else ""


class Parser(argparse.ArgumentParser):
    """argparse whose errors are UsageErrors, and which takes each option once and in full."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)
        self.hidden: dict[argparse.Action, str] = {}  # options that `--help` leaves out, with their help

    def group(self, title: str) -> argparse._ActionsContainer:
        """The group of options under this heading; without one, the parser itself."""
        known = (group for group in self._action_groups if group.title == title)
        return next(known, None) or self.add_argument_group(title) if title else self

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        raise UsageError(f"{message} (see {self.prog} --help)")


def program(
    settings: type, action: Callable[[Any], Exit], arguments: Sequence[str] | None, *, prog: str, description: str
) -> Exit:
    """Run a program whose command line is one class of settings; `action` is what it does with an instance of it.

    Returns the exit status of `action`, or of the UsageError that was printed.
    """
    parser = Parser(prog=prog, description=description)
    try:
        add_settings(parser, settings)
        return action(from_namespace(settings, parser.parse_args(arguments)))
    except UsageError as error:
        return print_error(prog, error)


class _HelpAll(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):  # type: ignore[no-untyped-def]
        for action, text in parser.hidden.items():
            action.help = text
        parser.print_help()
        parser.exit()


class _Once(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):  # type: ignore[no-untyped-def]
        seen = vars(namespace).setdefault("given", set())
        if self.dest in seen:
            parser.error(f"{option_string} is given twice: keep one")
        seen.add(self.dest)
        setattr(namespace, self.dest, True if self.nargs == 0 else values)


def add_settings(parser: Parser, cls: type, group: str = "") -> None:
    """Declare on `parser` every field of dataclass `cls` that was made by `setting`.

    Fields may be int, float, str, Path, bool (a switch, default False), `X | None`, or
    `tuple[X, ...]` (one or more values). If one is advanced, the parser gets the option `--help-all`. `group` is the
    heading of the help for options that have none of their own.
    """
    hints = typing.get_type_hints(cls)
    settings = [field for field in dataclasses.fields(cls) if "help" in field.metadata]
    if any(field.metadata["advanced"] for field in settings) and "--help-all" not in parser._option_string_actions:
        parser.add_argument("--help-all", action=_HelpAll, nargs=0, help="show the options for special cases too")
    for field in settings:
        meta = field.metadata
        kind, many = _kind(hints[field.name])
        options: dict[str, Any] = {"help": meta["help"], "action": _Once}
        if kind is bool:
            options["nargs"] = 0
        else:
            options["type"] = _converter(kind, meta)
            options["metavar"] = meta["metavar"] or (field.name.upper() if field.default is not MISSING else field.name)
            options["nargs"] = "+" if many else None
        if field.default is MISSING:
            parser.add_argument(field.name, **options)
        else:
            if field.default is not None and field.default is not False and field.default != ():
                options["help"] += f" (default {field.default})"
            name = meta["flag"] or "--" + field.name.replace("_", "-")
            options |= {"dest": field.name, "default": field.default}
            action = parser.group(meta["group"] or group).add_argument(*name.split("/"), **options)
            if meta["advanced"]:
                parser.hidden[action], action.help = options["help"], argparse.SUPPRESS


def from_namespace(cls: type, namespace: argparse.Namespace) -> Any:
    """An instance of `cls` from what `add_settings` parsed. Raises UsageError on what the class refuses."""
    values = {}
    for field in dataclasses.fields(cls):
        if "help" in field.metadata:
            value = getattr(namespace, field.name)
            values[field.name] = tuple(value) if isinstance(value, list) else value
    try:
        return cls(**values)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error


TEXT_TYPES = ("str", "classstr", "Path", "classpathlibPath", "tuplestr")  # hints of settings that are texts alone


def result_settings(instance: Any) -> dict[str, Any]:
    """The settings of a dataclass instance that change its results, as JSON values by name."""
    return {
        field.name: _plain(
            getattr(instance, field.name),
            "help" in field.metadata or re.sub(r"\W|None", "", str(field.type)) in TEXT_TYPES,
        )
        for field in dataclasses.fields(instance)
        if field.metadata.get("changes_results", True)
    }


def restored(cls: type, values: Mapping[str, Any]) -> Any:
    """An instance from what `result_settings` said of it; other settings have their defaults.

    Raises:
        ValueError, TypeError, KeyError: The values are of another version of the class.
    """
    hints, arguments = typing.get_type_hints(cls), {}
    for field in dataclasses.fields(cls):
        if field.name in values and "help" in field.metadata:
            kind, many = _kind(hints[field.name])
            value = values[field.name]
            arguments[field.name] = tuple(map(kind, value)) if many else None if value is None else kind(value)
    return cls(**arguments)


def selecting(instance: Any) -> set[str]:
    """The settings of a dataclass instance that only decide which trials there are."""
    return {field.name for field in dataclasses.fields(instance) if field.metadata.get("selects")}


def _plain(value: Any, typed: bool) -> Any:
    """A setting for JSON. Where its type is not known, no text stands for another value."""
    if isinstance(value, tuple):
        return [_plain(item, typed) for item in value]
    return str(value) if typed and isinstance(value, str | Path) else None if value is None else label_of(value)


def require_seconds(name: str, value: Any) -> None:
    """Raise UsageError unless the argument of that name is None or a number of seconds above 0."""
    if value is not None and (_fault(value, float, 0, MOST_SECONDS) or not value):
        raise UsageError(f"{name}={value!r:.100}: give a number of seconds above 0, or None for no limit")


def require_numbers(instance: Any, **lows: int) -> None:
    """Raise UsageError for a number of a dataclass instance that a command line would refuse, as Python may make it.

    `lows` are the smallest values where they are others, by name.
    """
    hints = typing.get_type_hints(type(instance))
    for field in (field for field in dataclasses.fields(instance) if "help" in field.metadata):
        (kind, many), value, meta = _kind(hints[field.name]), getattr(instance, field.name), field.metadata
        if kind not in (int, float) or many or (value is None and field.default is None):
            continue
        if fault := _fault(value, kind, lows.get(field.name, meta["low"]), meta["high"]):
            raise UsageError(f"{field.name}={value!r:.100} {fault}")


def _fault(value: Any, kind: type, low: float | None, high: float | None) -> str:
    """What is wrong with a number, "" for nothing."""
    right: Any = Integral if kind is int else Real
    if not isinstance(value, right) or isinstance(value, bool) or value != value:
        return f"is not {'a whole number' if kind is int else 'a number'}"
    if low is not None and value < low:
        return f"is too small: give at least {low}"
    return f"is too large: give at most {high}" if high is not None and value > high else ""


def _kind(hint: Any) -> tuple[type, bool]:
    """(type of one value, whether there are many) of a field's type hint."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True
    return hint, False


def _converter(kind: type, meta: Any) -> Any:
    low, high, choices = meta["low"], meta["high"], meta["choices"]

    def convert(text: str) -> Any:
        if choices is not None and text not in choices:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(choices)}")
        if kind is Path or kind is str:
            try:
                text.encode()
            except UnicodeEncodeError:
                raise argparse.ArgumentTypeError(f"{text!r} is not valid UTF-8: use another name") from None
            if not text or "\0" in text:
                raise argparse.ArgumentTypeError("an empty value: give a name")
            return kind(text)
        try:
            value = kind(text)
        except (ValueError, OverflowError):
            value = None
        if fault := _fault(value, kind, low, high):
            raise argparse.ArgumentTypeError(f"{repr(text) if value is None or value != value else text} {fault}")
        return value

    return convert
