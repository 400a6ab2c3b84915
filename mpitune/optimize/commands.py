"""Objectives that are programs: `python train.py --lr {lr}`.

Its last line of output that is a JSON object is the result. Output and exit status are kept; a program that takes too
long is killed with all that it started.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import signal
import string
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpitune.errors import UsageError, named
from mpitune.optimize.objectives import ObjectiveTrial
from mpitune.optimize.spaces import Space
from mpitune.optimize.values import NoValue, no_fault_of_the_trial
from mpitune.processes.keeper import has_keeper
from mpitune.processes.process import die_with
from mpitune.source import counting
from mpitune.storage.files import regular_file
from mpitune.trial import Evaluation

OUTPUT = "output.txt"  # in the trial's folder
LAUNCHERS = {  # how the processes of a trial are started on its nodes, by what started this job
    "srun": "srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --nodelist={hosts} --overlap",
    "mpiexec": "mpiexec -hosts {hosts} -n {nodes} -ppn 1",
    "": "mpirun --host {hosts} -n {nodes} --bind-to none",
}
QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
# Words that only a shell understands, and those that begin with > or <, as 2>&1, or end with a semicolon.
FOR_SHELL = re.compile(r"(?<!\S)(\|{1,2}|&{1,2}|;)(?!\S)|(?<!\S)([0-9&]?>{1,2}|<)|(?<=\S)(;)(?!\S)")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
LOOK_S = 0.1  # between two looks at whether a program may end
END_S = 5.0  # for a program that has taken too long to end by itself
GIVEN = ("number", "seed", "folder", "device", "start", "until", "hosts", "nodes")  # beside the parameters


class Command:
    """A program as objective.

    Args:
        command: The command, or its words; `{lr}` stands for the parameter lr, and number, seed, folder, device,
            start and until for what the trial has (parameters win). No shell is between: a text with `|`, `>` or
            `&&` outside of quotes is refused, write `sh -c '... "$1"' sh {lr}`. In that text itself a shell would read
            a value as code. Parameters that a trial does not have are left out, with the word they stand in.
        launcher: What comes before the command in a trial of whole nodes (`search(..., nodes=2)`): {hosts} stands for
            their names with commas between, {nodes} for their number. By default the job's, with one process per node.
    """

    def __init__(self, command: str | Sequence[str], *, launcher: str | Sequence[str] | None = None):
        self.words = words_of(command, "command")
        self._for_shell = ""  # what only a shell would read; a list of words is taken as it is
        if isinstance(command, str):
            self._for_shell = word[0] if (word := FOR_SHELL.search(QUOTED.sub("_", command))) else ""
        if not self.words:
            raise UsageError("the command is empty: give one such as 'python train.py --lr {lr}'")
        self.timeout: float | None = None  # seconds after which it is killed, see `limited`
        self._names()  # raises
        self.launcher = launcher and words_of(launcher, "launcher")

    anew: tuple[str, ...] = (OUTPUT,)  # patterns of what an attempt does not take over, as it is not its own

    @property
    def staged(self) -> bool:
        return "until" in self._names()

    def check(self, space: Space) -> None:
        """Raise UsageError if it needs a shell, asks for what a trial does not have, or leaves a parameter unused."""
        if self._for_shell:
            raise UsageError(
                f"the command has {self._for_shell}, but no shell runs it: give sh the text and the values, "
                """["sh", "-c", 'train "$1" | tee log', "sh", "{x}"], """
                f"or, to pass {self._for_shell} on as it is, the words as a list"
            )
        known = {*space.parts, *space.constants, *GIVEN}
        for name in self._names():
            if name not in known:
                fix = "" if name.isidentifier() else "; a brace of its own is written twice"
                raise UsageError(f"the command has {{{name}}}, but the parameters are {named(space.parts)}{fix}")
        unused = next((name for name in space.parts if name not in self._names()), None)
        if unused is not None:
            raise UsageError(f"the command does not use the parameter {unused}: write {{{unused}}} where it belongs")

    def called(self) -> Mapping[str, Any]:
        """Its words, and the source of each program in Python among them."""
        programs = [Path(word) for word in self.words if word.endswith(".py") and Path(word).is_file()]
        return {
            "command": repr(self.words),
            **{path.name: counting(path.read_text(errors="replace")) for path in programs},
        }

    def limited(self, seconds: float) -> Command:
        """The same, killed after this time."""
        made = copy.copy(self)
        made.timeout = seconds
        return made

    def launched_by(self, launcher: str) -> Command:
        """The same; where it has no launcher of its own, that of a job which `launcher` has started."""
        made = copy.copy(self)
        if made.launcher is None:
            made.launcher = shlex.split(LAUNCHERS.get(launcher, LAUNCHERS[""]))
            if made.launcher[0] == "mpirun" and os.geteuid() == 0:  # as the mpirun was that started this job
                made.launcher.append("--allow-run-as-root")
        return made

    def __call__(self, trial: ObjectiveTrial) -> Mapping[str, Any] | Evaluation:
        nodes = {"hosts": ",".join(trial.hosts), "nodes": len(trial.hosts)}
        templates = [*((self.launcher or []) if trial.hosts else []), *self.words]
        names = {name for text in templates for name in _names(text)} | self._names()  # no others count as read
        names -= set(trial.params)
        values: dict[str, Any] = {name: getattr(trial, name, None) for name in GIVEN if name in names}
        values |= {**nodes, **trial.params}
        words = [word for template in templates if (word := _filled(template, values)) is not None]
        if failed := self.run(trial, words, {}):
            raise RuntimeError(failed)
        for line in reversed((trial.folder / OUTPUT).read_text(errors="replace").splitlines()):
            with suppress(ValueError):
                if isinstance(printed := json.loads(line), dict):
                    return printed
        raise NoValue('its command printed no JSON object: print one as the last line, such as {"loss": 0.5}')

    def run(
        self,
        trial: ObjectiveTrial,
        words: Sequence[str],
        environment: Mapping[str, str],
        enough: Callable[[], bool] | None = None,
        words_shown: Sequence[str] = (),
    ) -> str:
        """Run a program with these variables until it ends, or `enough` says so, which is asked now and then.

        Returns why it failed, "" if it did not; `words_shown` stand there for words that have secrets.
        """
        output, around = trial.folder / OUTPUT, dict(os.environ)
        if trial.hosts and trial.device == "cuda":
            del around["CUDA_VISIBLE_DEVICES"]  # names of this node's GPUs, which mean nothing on another
        status, late = _run(words, {**around, **environment}, output, self.timeout, enough)
        failed, shown = "", shlex.join(words_shown or words)
        if late:
            failed = f"no end within {self.timeout:g} s: {shown} was killed, see {output}"
        elif status != 0:
            ended = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            failed = f"{ended}: {shown}: {_last_line(output)}"
        return failed.replace(str(trial.folder), str(trial._attempt.link))  # which is the same in all attempts

    def _names(self) -> set[str]:
        return {name for text in self.words for name in _names(text)}


def words_of(command: str | Sequence[str], what: str) -> list[str]:
    """The words of a command. Raises UsageError."""
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise UsageError(f"the {what} {command!r:.200} cannot be divided into words: {str(error).lower()}") from error
    if wrong := next((word for word in words if not isinstance(word, str)), None):
        raise UsageError(f"the {what} has {wrong!r} among its words: give texts, such as {str(wrong)!r}")
    return words


def _names(text: str) -> list[str]:
    """The placeholders in a text. Raises UsageError where a brace stands alone."""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(text) if name]
    except ValueError as error:
        raise UsageError(f"{text!r:.200} of the command: {error}; a brace of its own is written twice") from error
    return names


def _filled(template: str, values: Mapping[str, Any]) -> str | None:
    """The text with its values; None where a parameter is not there."""
    try:
        return template.format_map(values)
    except KeyError:
        return None


def _run(
    words: Sequence[str],
    environment: Mapping[str, str],
    output: Path,
    timeout: float | None,
    enough: Callable[[], bool] | None = None,
) -> tuple[int, bool]:
    """(exit status, whether it was killed for taking too long) of a program that writes to `output`."""
    parent = os.getpid()
    with no_fault_of_the_trial(output):
        opened = open(regular_file(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb")  # noqa: SIM115 - see below
    with opened as file:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=dict(environment),
            start_new_session=True, preexec_fn=None if has_keeper() else lambda: die_with(parent),
        )  # fmt: skip
        late, ends = False, None if timeout is None else time.monotonic() + timeout
        try:
            look_s = LOOK_S
            while process.poll() is None:
                left = None if ends is None else max(0.0, ends - time.monotonic())
                try:
                    process.wait(left if enough is None else min(look_s, look_s if left is None else left))
                except subprocess.TimeoutExpired:
                    began = time.monotonic()
                    late = ends is not None and began >= ends
                    enough_said = not late and enough is not None and enough()
                    look_s = max(LOOK_S, 50 * (time.monotonic() - began))  # a fiftieth of the time at most
                    if late or enough_said:
                        _kill(process.pid, signal.SIGTERM)  # a launcher then ends what it has started on other nodes
                        with suppress(subprocess.TimeoutExpired):
                            process.wait(END_S)
                        break
        finally:
            _kill(process.pid)  # what it left behind
    return process.wait(), late


def _kill(group: int, by: int = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, by)


def _last_line(output: Path) -> str:
    text = COLOURS.sub("", output.read_text(errors="replace"))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("wandb: ")]  # its farewell
    return lines[-1][:500] if lines else "no output"
