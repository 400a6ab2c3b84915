"""Jobs that work on one study at the same time: what each of them has in the folder of the study.

    journal.jsonl            the header of the study; a job that does not join others writes here, alone
    jobs/NAME/               of one job: journal.jsonl, arrays/ and status.json, as in the folder of a study of its own
    jobs/NAME/alive          touched as long as the job lives
    jobs/claims/00000001     the first claim, then 00000002, ...: which job has taken which batches

No job waits for a lock, which many network file systems lack, and none leads. A claim counts once it has the next
number, which the file server gives to one job only: making a hard link fails where the name is taken. So all jobs see
the claims in one order. A batch is of the job that claimed it last.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from mpitune.errors import UsageError
from mpitune.storage.files import CLAIMS, JOBS, JOURNAL, OpenFolder, make_folder, read_at_most
from mpitune.storage.records import UNREADABLE, EndLine, TrialLine, checked, read_other, read_trial, require_checksum

log = logging.getLogger(__name__)

LARGEST = 16 << 20  # bytes of a claim
STRANGE = (errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENXIO)  # what opening says where there is no regular file
NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)  # what `link` says where there are none


class Claim(Struct):
    """batches: their names."""

    job: str
    batches: list[str]


class Claims:
    """The claims of all jobs, as far as this one has read them.

    Attributes:
        owner: the job that claimed a batch last, by the batch's name.
    """

    def __init__(self, folder: Path, job: str):
        self._path, self._job = folder / JOBS / CLAIMS, job
        self._n = 0
        self.owner: dict[str, str] = {}
        make_folder(self._path)
        self._folder = OpenFolder(self._path)

    def read(self) -> list[str]:
        """Read the claims that have come since; returns the batches that they name."""
        claimed: list[str] = []
        while (claim := self._read(self._n + 1)) is not None:
            self._n += 1
            claimed += claim.batches
            self.owner.update(dict.fromkeys(claim.batches, claim.job))
        return claimed

    def take(self, batches: Sequence[str]) -> bool:
        """Claim these batches. False where another claim came first, which is to be read then."""
        claim = Claim(self._job, list(batches))
        part, place = f".{self._job}.{self._n}.part", self._folder.descriptor
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(part, flags, 0o666, dir_fd=place)
        try:
            with open(descriptor, "wb") as file:
                file.write(msgspec.json.encode(claim))
            os.link(part, f"{self._n + 1:08}", src_dir_fd=place, dst_dir_fd=place)
        except FileExistsError:
            if os.stat(part, dir_fd=place).st_nlink == 1:  # else NFS has made the link, and has asked twice
                return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            raise UsageError(no_links(self._path, error)) from error
        finally:
            os.unlink(part, dir_fd=place)
        self._n += 1
        self.owner.update(dict.fromkeys(claim.batches, claim.job))
        return True

    def close(self) -> None:
        """Nothing more is claimed."""
        self._folder.close()

    def _read(self, number: int) -> Claim | None:
        try:
            content = self._folder.read(f"{number:08}")
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in STRANGE:
                raise
            content = b""  # a link, a folder or a pipe: no job has made it
        try:
            return msgspec.json.decode(content, type=Claim)
        except msgspec.MsgspecError:  # lost with the file server's memory: who made it does the work, others may, too
            return Claim("", [])


def n_claimed(folder: Path) -> Counter[str]:
    """How many batches each job has claimed, for people."""
    try:
        paths = [path for path in (folder / JOBS / CLAIMS).iterdir() if path.name.isdecimal()]
    except (FileNotFoundError, NotADirectoryError):
        return Counter()
    claimed: Counter[str] = Counter()
    for path in paths:
        with suppress(OSError, msgspec.MsgspecError):
            claim = msgspec.json.decode(read_at_most(path, LARGEST), type=Claim)
            claimed[claim.job] += len(claim.batches)
    return claimed


def no_links(folder: Path, error: OSError) -> str:
    """The message for a user whose file system has no hard links."""
    return (
        f"{folder} is on a file system without hard links ({error.strerror}), by which jobs that join take their work: "
        "give a results folder on another, or run one job"
    )


class Follower:
    """Reads what another job writes into its journal.

    Attributes:
        ended, complete: whether the job has said that it ends, and that the study is complete.
    """

    def __init__(self, folder: Path):
        self.name, self.ended, self.complete = folder.name, False, False
        self._path, self._offset, self._said = folder, 0, False
        self._folder: OpenFolder | None = None

    def close(self) -> None:
        """Nothing more is read."""
        if self._folder is not None:
            self._folder.close()

    def read(self) -> Iterator[TrialLine]:
        """The trials that it has finished since. A damaged line is passed over: its trial is then not known.

        So is a journal that cannot be read, such as a link, or that of a user who lets nobody read it. A line says it.
        """
        try:
            self._folder = self._folder or OpenFolder(self._path)
            content = self._folder.read(JOURNAL, self._offset)
        except FileNotFoundError:
            return
        except OSError as error:
            if not self._said:
                log.warning("%s cannot be read (%s): its results are not used", self._path / JOURNAL, error.strerror)
            self._said = True
            return
        content = content[: content.rfind(b"\n") + 1]
        self._offset += len(content)
        for line in content.splitlines():
            with suppress(*UNREADABLE):
                require_checksum(line)
                try:
                    record: TrialLine | dict[str, Any] = read_trial(line)
                except msgspec.MsgspecError:
                    record = read_other(line)
                if isinstance(record, TrialLine):
                    yield record
                elif "end" in record:
                    end = checked(record["end"], EndLine)
                    self.ended, self.complete = not end.get("draining"), end["complete"]
