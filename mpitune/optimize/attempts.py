"""The folder of a trial, of which each attempt of each job has its own.

    trials/t000007 -> .t000007.2      what users find: the attempt that has finished, else the one that was begun last
    trials/.t000007.2/                of the second attempt, which began with a copy of the first one's
    trials/.t000007.2/.finished       the stage of the trial that was finished there
    trials/.t000007.3-0f9c2a7e/       of a job that has joined others, known by these digits

So no job touches what an attempt of another writes, whichever of them was suspended and wakes, and a program that
outlives its attempt writes into no other. The next stage goes on in the same folder if that is its own job's, else in
a copy. Who removes `.finished` has the folder.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mpitune.optimize.steps import LOG, StepLog
from mpitune.optimize.strategies.base import number_of
from mpitune.optimize.values import FolderFault, no_fault_of_the_trial
from mpitune.storage.files import (
    copy_folder,
    link_in,
    make_folder,
    put_link,
    read_at_most,
    remove_file,
    remove_folder,
    written_whole,
)
from mpitune.trial import Segment, Trial

FINISHED_FILE = ".finished"
PARTS = ".*.[0-9]*.part"  # of files that were being written
COPY_TRIES, PAUSE_S = 8, 0.25  # to copy a folder that a job changes which was taken for dead


class AttemptFolder:
    """The folder of an attempt to evaluate a trial, or a stage of it.

    Args:
        trial: what it evaluates.
        trials: the folder of all trials' folders.
        job: digits of this job where others have joined, else "": then nobody else can be at work there.
        anew: patterns of names that are not taken over from the attempt before.
        like: what the first attempt begins with a copy of.

    It looks at the file system when it is first asked for its path, or at once where others will go on from it.

    Attributes:
        link: the path that users know.
        path: of the folder, which is there if something was taken over, else once it was made.
        goes_on: whether it has taken over what an attempt left that did not finish.

    Raises:
        FolderFault: what is there cannot be taken over, here or by any of its methods. `finish` raises again what an
            objective has swallowed.
    """

    def __init__(self, trial: Trial, trials: Path, job: str = "", anew: Iterable[str] = (), like: Path | None = None):
        own = trial.segment.parent  # as it begins with another trial's
        self.link = trials / (_of_stage(trial.key) if own else f"t{number_of(trial):06}")
        self._stage, self._job = trial.segment.stage or 0, job
        self._is_begun = self._is_shown = self.goes_on = False
        self._begins = trial.segment, trials, [FINISHED_FILE, PARTS, *anew], like
        self._fault: FolderFault | None = None
        if own or like is not None:
            self._begin()

    @property
    def path(self) -> Path:
        self._begin()
        return self._path

    def _begin(self) -> None:
        if not self._is_begun:
            with self._own_work():
                self._take_over(*self._begins)
            self._is_begun = True

    @contextmanager
    def _own_work(self) -> Iterator[None]:
        """Around what is no work of the objective."""
        if self._fault is not None:
            raise self._fault
        try:
            with no_fault_of_the_trial(self.link):
                yield
        except FolderFault as fault:
            self._fault = fault
            raise

    def _take_over(self, segment: Segment, trials: Path, but: list[str], like: Path | None) -> None:
        """Begin with what is there. Raises OSError."""
        self._before = before = folder_at(self.link)
        if before == self.link:  # a folder itself, as in a copy that has followed links
            self._before = before = self.link.with_name(f".{self.link.name}.0")
            os.rename(self.link, before)
            put_link(self.link, before.name)
        n, _ = (0, "") if before is None else _parts_of(before)
        self.goes_on = before is not None and not -1 < _finished(before) < self._stage
        while os.path.lexists(self._named(n := n + 1)):
            if before is not None:  # a copy that was cut off
                remove_folder(self._named(n))
            elif _finished(self._named(n)) > -1:
                raise FileNotFoundError(errno.ENOENT, f"the link to {self._named(n).name} is gone: put it there again")
        self._path = self._named(n)
        if before is not None:
            if self._is_own(before) and -1 < _finished(before) < self._stage and remove_file(before / FINISHED_FILE):
                self._path = before
                return
            self._copy(self.link, but)
            if self._is_own(before):
                remove_folder(before)
        else:
            if segment.parent:
                like, but = trials / _of_stage(segment.parent), [*but, LOG]
            if like is not None and os.path.lexists(like):
                make_folder(trials)
                source = self._copy(like, but)
                if LOG in but and 0 in StepLog(source).steps:
                    with written_whole(self._path / LOG, "w", durable=False) as file:
                        file.write(json.dumps([0, {}]) + "\n")
        if segment.parent and self._stage > 1:  # all have their copies of what it had two stages ago
            old = trials / _of_stage(f"t{segment.number:06}/{self._stage - 2}")
            with suppress(FileNotFoundError):  # that was cut off here
                if (folder := folder_at(old)) is not None and (
                    self._is_own(folder) or remove_file(folder / FINISHED_FILE)
                ):
                    remove_folder(folder)
                    remove_file(old)

    def make(self) -> Path:
        """The path; the folder is made if it is not there."""
        self._begin()
        if not self._is_shown:
            with self._own_work():
                make_folder(self.path)  # first, as a link that leads nowhere means that work was lost
                self._show()
        return self.path

    def finish(self) -> None:
        """Have this attempt be the trial's, unless another job was first to finish it, or goes on from there."""
        if self._fault is None and not (self._is_begun and self.path.exists()):  # it was not asked for
            return
        with self._own_work():
            with written_whole(self.path / FINISHED_FILE, "w", durable=False) as file:
                file.write(str(self._stage))
            self._show()
        old = self._before
        if old not in (None, self.path) and -1 < _finished(old) < self._stage and remove_file(old / FINISHED_FILE):
            remove_folder(old)  # of another job, which has finished the stage before

    def _show(self) -> None:
        other = folder_at(self.link)
        stage = -1 if other is None else _finished(other)
        if other is None or stage < self._stage or self._is_own(other):
            put_link(self.link, self._path.name)
        self._is_shown = True

    def _named(self, number: int) -> Path:
        return self.link.with_name(f".{self.link.name}.{number}" + (f"-{self._job}" if self._job else ""))

    def _is_own(self, folder: Path) -> bool:
        """Whether no other job can be at work in this folder."""
        return self._job in ("", _parts_of(folder)[1])

    def _copy(self, link: Path, but: Iterable[str]) -> Path:
        """Take over what a link leads to, as it was at one moment. Returns where it is."""
        for left in reversed(range(COPY_TRIES)):
            if (source := folder_at(link)) is None:
                raise FileNotFoundError(errno.ENOENT, f"{link} was removed")
            was = _state_of(source)
            try:
                copy_folder(source, self._path, but)
                if was == _state_of(source):
                    self._show()
                    return source
                remove_folder(self._path)
            except OSError:
                if not left or was == _state_of(source):
                    raise
            time.sleep(PAUSE_S)
        raise OSError(errno.EBUSY, f"{source} changes while it is copied: another job is at work there")


def folder_at(link: Path) -> Path | None:
    """The folder of a trial, or of a stage of it, as users find it; None where there is none. Raises OSError."""
    try:
        leads = link_in(link)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        if stat.S_ISDIR(os.lstat(link).st_mode):
            return link  # a folder itself
        leads = ""
    if leads is not None and not re.fullmatch(rf"\.{re.escape(link.name)}\.\d+(-\w+)?", leads):
        raise OSError(errno.ENOTDIR, "it is a link or no folder: put the folder itself there, or remove it")
    if leads is None or os.path.lexists(link.with_name(leads)):
        return None if leads is None else link.with_name(leads)
    if link_in(link) != leads:  # another job was faster
        return folder_at(link)
    fix = "copy the results with their hidden files, or remove this link to lose what it led to"
    raise FileNotFoundError(errno.ENOENT, f"{link.name} leads to {leads}, which is not there: {fix}")


def _parts_of(folder: Path) -> tuple[int, str]:
    """The number of an attempt, and the digits of its job, by the name of its folder."""
    number, _, job = folder.name.rpartition(".")[2].partition("-")
    return int(number), job


def _finished(folder: Path) -> int:
    """The stage that was finished there last, -1 where none was."""
    try:
        return int(read_at_most(folder / FINISHED_FILE, 20))
    except (OSError, ValueError):
        return -1


def _state_of(folder: Path) -> dict[str, tuple[int, ...]]:
    """What all files in a folder look like, by their paths."""
    states: dict[str, tuple[int, ...]] = {}
    for path in (os.path.join(below, name) for below, _, names in os.walk(folder) for name in names):
        with suppress(FileNotFoundError):
            state = os.lstat(path)
            states[path] = (state.st_ino, state.st_size, state.st_mtime_ns)
    return states


def _of_stage(key: str) -> str:
    """The name of a stage's folder; the first has that of its trial."""
    return key.removesuffix("/0").replace("/", "-")
