"""Files that are written whole or not at all, and files of a folder that a stranger may have filled.

The folder of a study is reached as its user says, through links too. What lies in it is a regular file, or a folder: no
link in it is followed, and no pipe or device is opened, which could hang or never end.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from mpitune.errors import UsageError

JOURNAL = "journal.jsonl"  # by which the folder of a study is known
PAGE = "report.html"  # about the study
STATUS_FILE = "status.json"  # while it runs
TRIALS = "trials"  # the folder of the folders of a search's trials
JOBS = "jobs"  # the folder of jobs that have joined it
ALIVE = "alive"  # in the folder of each: touched as long as it lives
CLAIMS = "claims"  # there, see `mpitune.storage.jobs`
_LEVELS = 4  # of folders in the folder of a study
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC  # for what need not be listed


def regular_file(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file. In the folder of a study no link is followed; at the path's end in no folder.

    With O_CREAT it is made where it is not there. Raises OSError where it is something else.
    """
    with _parent_of(path) as folder:
        with suppress(FileNotFoundError):  # it may be made
            _require(stat.S_ISREG(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode))
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path.name, flags, 0o666, dir_fd=folder)
    try:
        _require(stat.S_ISREG(os.fstat(descriptor).st_mode))
        os.set_blocking(descriptor, True)  # only its opening must not wait
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def job_folders(folder: Path) -> list[Path]:
    """The folders of all jobs that have joined the study in `folder`, by name. Raises UsageError."""
    try:
        return new_jobs(folder, ())
    except OSError as error:
        raise UsageError(f"{folder / JOBS} cannot be read: {error.strerror}") from error


def new_jobs(folder: Path, known: Container[str]) -> list[Path]:
    """Those of the jobs whose names are not known."""
    try:
        names = sorted(os.listdir(folder / JOBS))
    except (FileNotFoundError, NotADirectoryError):
        return []
    new = [folder / JOBS / name for name in names if name != CLAIMS and name not in known]
    return [job for job in new if job.is_dir()]


class OpenFolder:
    """A folder that stays open, so that a file in it costs a file server one call. No link is followed."""

    def __init__(self, path: Path):
        with _parent_of(path / "any") as descriptor:
            self.descriptor = os.dup(descriptor)

    def read(self, name: str, most: int, start: int = 0) -> bytes:
        """At most so many bytes of a file, from `start` on. It is opened again: NFS asks its server. Raises OSError."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(name, flags, dir_fd=self.descriptor), "rb") as file:
            state = os.fstat(file.fileno())
            _require(stat.S_ISREG(state.st_mode))
            return os.pread(file.fileno(), min(most, max(0, state.st_size - start)), start)

    def close(self) -> None:
        os.close(self.descriptor)


def read_at_most(path: Path, most: int) -> bytes:
    """The content of a small file. Raises OSError, for a larger one too."""
    with open(regular_file(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > most or len(content := file.read(most + 1)) > most:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return content


def _require(regular: bool) -> None:
    if not regular:
        raise OSError(errno.EINVAL, "it is a link, a pipe or a device, but must be a file of its own")


@contextmanager
def _parent_of(path: Path) -> Iterator[int]:
    """A descriptor of the folder that a path lies in. Raises OSError for a link within the folder of a study."""
    inner: list[str] = []
    root = path.parent
    for folder in [path.parent, *path.parent.parents][:_LEVELS]:
        if os.path.lexists(folder / JOURNAL):
            if folder.parent.name == JOBS and os.path.lexists(folder.parent.parent / JOURNAL):
                folder = folder.parent.parent  # of the study, which a job has joined
            inner = list(path.parent.relative_to(folder).parts)
            root = folder
            break
    descriptor = os.open(root, _FOLDER)
    try:
        for name in inner:
            try:
                lower = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
            except NotADirectoryError as error:  # which is what Linux says of a link, too
                words = f"{root / name} is a link or no folder: put the folder itself there"
                raise OSError(errno.ENOTDIR, words) from error
            os.close(descriptor)
            descriptor, root = lower, root / name
        yield descriptor
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it. Raises OSError for one that is a link within the folder of a study."""
    try:
        with _parent_of(path / "any"):
            return
    except FileNotFoundError:
        make_folder(path.parent)
    with _parent_of(path) as folder, suppress(FileExistsError):  # another process may have made it
        os.mkdir(path.name, dir_fd=folder)
    with _parent_of(path / "any"):
        pass


def remove_folder(path: Path) -> None:
    """Remove a folder and all in it, as far as that can be; no link is followed, in it or in the folder of a study."""
    with suppress(OSError), _parent_of(path) as folder:
        shutil.rmtree(path.name, dir_fd=folder, ignore_errors=True)


def link_in(path: Path) -> str | None:
    """What a link says, None where there is none. Raises OSError for something else, and a link on the way there."""
    with suppress(FileNotFoundError), _parent_of(path) as folder:
        return os.readlink(path.name, dir_fd=folder)
    return None


def put_link(path: Path, to: str) -> None:
    """Make a link, or have it lead elsewhere, in one step. Raises OSError."""
    with _part_of(path) as (part, folder):
        os.symlink(to, part, dir_fd=folder)
        os.replace(part, path.name, src_dir_fd=folder, dst_dir_fd=folder)


def remove_file(path: Path) -> bool:
    """Remove a file or link. Returns whether it was there, and nobody else has removed it."""
    with suppress(OSError), _parent_of(path) as folder:
        os.unlink(path.name, dir_fd=folder)
        return True
    return False


def copy_folder(source: Path, target: Path, but: Iterable[str] = ()) -> None:
    """Copy a folder to a new one. No link is followed, and pipes, sockets and devices are left out.

    Links in it are copied as links: one that leads into the folder leads into its copy. Files and folders with a name
    of the patterns in `but` are left out, too. Raises OSError; then there is no copy.
    """

    def left_out(below: str, names: list[str]) -> set[str]:
        kinds = {name: stat.S_IFMT(os.lstat(os.path.join(below, name)).st_mode) for name in names}
        others = {name for name, kind in kinds.items() if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)}
        return others | shutil.ignore_patterns(*but)(below, names)

    with _parent_of(source / "any") as old, _parent_of(target) as folder:
        os.mkdir(target.name, dir_fd=folder)
        copy = Path(f"/proc/self/fd/{folder}", target.name)
        try:
            how: Any = {"symlinks": True, "dirs_exist_ok": True, "ignore": left_out}
            try:
                shutil.copytree(f"/proc/self/fd/{old}", copy, copy_function=_copy_file, **how)
            except (shutil.Error, RecursionError) as error:  # the first of a list of errors; too deep folders
                name, why = error.args[0][0][::2] if isinstance(error, shutil.Error) else (".", "too many folders")
                raise OSError(errno.EIO, f"{name.replace(f'/proc/self/fd/{old}', str(source))}: {why}") from error
            for below, folders, names in os.walk(copy):
                for link in (Path(below, name) for name in folders + names if Path(below, name).is_symlink()):
                    if (leads := os.readlink(link)).startswith(f"{source}/"):
                        link.unlink()
                        link.symlink_to(f"{target}{leads.removeprefix(str(source))}")
        except BaseException:
            shutil.rmtree(target.name, dir_fd=folder, ignore_errors=True)
            raise


def _copy_file(source: str, target: str) -> None:
    """Copy a regular file to a new one. Raises OSError.

    Of its mode only the right to run it is taken over: a stranger's may let others act as the owner, now the user.
    """
    with open(regular_file(Path(source)), "rb") as old:
        state = os.fstat(old.fileno())
        mode = 0o777 if state.st_mode & stat.S_IXUSR else 0o666
        with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as new:
            shutil.copyfileobj(old, new, 1 << 20)
            new.flush()
            os.utime(new.fileno(), ns=(state.st_atime_ns, state.st_mtime_ns))


@contextmanager
def written_whole(path: Path, mode: str = "wb", *, durable: bool = True) -> Iterator[IO[Any]]:
    """A file to write that appears under its name only when it is complete and, if it is to be `durable`, on disk.

    It is written under a neighbouring name, fsynced and renamed; on an exception it is removed. Text is UTF-8; half a
    surrogate pair in it is escaped. A link of that name is replaced, and none in the folder of a study is followed.
    """
    text: dict[str, Any] = {} if "b" in mode else {"newline": "", "encoding": "utf-8", "errors": "backslashreplace"}
    make_folder(path.parent)
    with _part_of(path) as (part, folder), open(open_part(part, folder), mode, **text) as file:
        yield file
        file.flush()
        if durable:
            os.fsync(file.fileno())
        os.replace(part, path.name, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def _part_of(path: Path) -> Iterator[tuple[str, int]]:
    """A name for a part of a file, and its open folder. What still has this name in the end is removed."""
    part = f".{path.name}.{int(os.urandom(6).hex(), 16)}.part"  # processes of several hosts may have the same number
    with _parent_of(path) as folder:
        try:
            yield part, folder
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part, dir_fd=folder)


def open_part(name: str, folder: int) -> int:
    """A descriptor of a new file in an open folder."""
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder)


def written_first(path: Path, content: bytes) -> None:
    """Write a file whole, unless there is one of that name. Raises OSError, also where there are no hard links."""
    with _part_of(path) as (part, folder), open(open_part(part, folder), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(part, path.name, src_dir_fd=folder, dst_dir_fd=folder)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, as fsync of a file does for its content."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
