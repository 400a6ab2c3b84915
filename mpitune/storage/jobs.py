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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from mpitune.errors import UsageError
from mpitune.storage.arrays import array_path
from mpitune.storage.files import CLAIMS, JOBS, JOURNAL, OpenFolder, make_folder, open_part
from mpitune.storage.history import leave_out, require_same_study
from mpitune.storage.lines import LONGEST_LINE, header_of
from mpitune.storage.records import UNREADABLE, EndLine, TrialLine, checked, read_line, require_checksum

log = logging.getLogger(__name__)

LARGEST = 16 << 20  # bytes of a claim
# What opening says where there is no regular file, or one that this user may not read.
STRANGE = (errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM)
NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)  # what `link` says where there are none


class Claim(Struct):
    """batches: their names."""

    job: Annotated[str, Meta(pattern=r"^[^/\0]*$", max_length=255)]  # the name of a folder
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
        with open(open_part(part, place), "wb") as file:
            try:
                file.write(msgspec.json.encode(claim))
                file.flush()
                os.link(part, f"{self._n + 1:08}", src_dir_fd=place, dst_dir_fd=place)
            except FileExistsError:
                if os.stat(part, dir_fd=place).st_nlink == 1:  # else NFS has made the link, and has asked twice
                    return False
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                raise UsageError(
                    f"{self._path} is on a file system without hard links ({error.strerror}), by which jobs that join "
                    "take their work: give a results folder on another, or run one job"
                ) from error
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
            content = self._folder.read(f"{number:08}", LARGEST)
            return msgspec.json.decode(content, type=Claim)
        except FileNotFoundError:
            return None
        except (OSError, *UNREADABLE) as error:
            # It is a link, a folder or a pipe, which no job has made; or was lost with the file server's memory: who
            # made it does the work, others may, too.
            if isinstance(error, OSError) and error.errno not in STRANGE:
                raise
            os.stat(f"{number:08}", dir_fd=self._folder.descriptor, follow_symlinks=False)  # else it is the folder
            leave_out(self._path / f"{number:08}", error, "this claim is passed over")
            return Claim("", [])


class Follower:
    """Reads what another job writes into its journal.

    A damaged line is passed over: its trial is then not known. So is a journal that cannot be read, such as a link, or
    that of a user who lets nobody read it, or that is of a study with other `settings`. A line says it.

    Attributes:
        ended: whether the job has said that it ends.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any] | None = None):
        self.name, self.ended = folder.name, False
        self._path, self._offset, self._settings = folder, 0, settings
        self._folder: OpenFolder | None = None

    def close(self) -> None:
        """The folder is not kept open."""
        if self._folder is not None:
            self._folder.close()
        self._folder = None

    def read(self) -> Iterator[TrialLine]:
        """The trials that it has finished since."""
        while lines := self._lines():
            for line in lines:
                with suppress(*UNREADABLE):
                    if (record := self._record(line)) is not None:
                        yield record

    def _lines(self) -> list[bytes]:
        try:
            self._folder = self._folder or OpenFolder(self._path)
            content = self._folder.read(JOURNAL, LONGEST_LINE, self._offset)
            whole = content[: content.rfind(b"\n") + 1]
            lines = whole.split(b"\n")[:-1]
            if len(content) == LONGEST_LINE and not whole:
                raise OSError(errno.EFBIG, "a line without an end")
            if whole and self._offset == 0 and self._settings is not None:
                stored = header_of(self._path / JOURNAL, lines[0])["settings"]
                require_same_study(self._path, stored, self._settings, fix="")
        except FileNotFoundError:
            return []
        except (OSError, UsageError) as error:
            leave_out(self._path / JOURNAL, error)
            self.ended = isinstance(error, UsageError)
            return []
        self._offset += len(whole)
        return lines

    def _record(self, line: bytes) -> TrialLine | None:
        """The trial of a line, None for any other line. Raises UNREADABLE."""
        require_checksum(line)
        record = read_line(line)
        if isinstance(record, TrialLine):
            assert record.trial
            there = not record.arrays or os.path.lexists(array_path(self._path, record.key))
            return record if there else None  # as if it had not been evaluated
        if "end" in record:
            self.ended = not checked(record["end"], EndLine).get("draining")
        return None
