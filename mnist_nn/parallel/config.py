"""Options from a file: `--config FILE.json`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpitune.errors import UsageError
from mpitune.settings import Parser


class ConfigUnreadable(UsageError):
    """There is no such file on this host. Others may have it."""


def parse_with_config(parser: Parser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """What `parser`, which has an option --config, makes of the arguments and of the file that it names.

    The file is a JSON object of options by name, such as {"batch-size": 128, "resume": true}. An option on the command
    line wins. A value of null or false counts as not given.

    Raises:
        UsageError: the parser would not take it; the file is named.
    """
    given = parser.parse_args(arguments)
    if given.config is None:
        return given
    path: Path = given.config
    names = {name: action for action in parser._actions for name in action.option_strings}
    words: list[str] = []
    for name, value in _object(path).items():
        option = "--" + name.replace("_", "-")
        if option not in names or option in ("--config", "--help", "--help-all"):
            raise UsageError(f"--config {path}: there is no option {name} (see {parser.prog} --help)")
        words += _words(path, option, value, switch=names[option].nargs == 0)
    try:
        from_file = parser.parse_args(words)
    except UsageError as error:
        raise UsageError(f"--config {path}: {error}") from error
    for action in parser._actions:
        if action.dest in getattr(from_file, "given", ()) and action.dest not in getattr(given, "given", ()):
            setattr(given, action.dest, getattr(from_file, action.dest))
    return given


def _object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigUnreadable(f"--config {path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UsageError(f"--config {path} is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise UsageError(f'--config {path} is not a JSON object: give one such as {{"batch-size": 128}}')
    return content


def _words(path: Path, option: str, value: Any, switch: bool) -> list[str]:
    """An entry as a command line would say it."""
    if value is None or value is False:
        return []
    if switch != (value is True) or isinstance(value, list | dict):
        fit = "true or false" if switch else "a number or a name"
        raise UsageError(f"--config {path}: {option[2:]} is {json.dumps(value)}: give {fit}")
    return [option] if switch else [f"{option}={value}"]
