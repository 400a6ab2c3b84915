"""Nothing that another user of this machine plants is run, followed or written to: a real second user plants it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpitune.folders import FOLDER_NAME
from mpitune.locks import locked, open_lock
from tests.helpers import ROOT

VICTIM, STRANGER = 12345, 65534


class Machine:
    """Folders as two users see them: /tmp, which is sticky, and the home of the one who runs our programs."""

    def __init__(self, base: Path) -> None:
        self.base, self.temporary, self.home = base, base / "tmp", base / "home"
        base.chmod(0o755)
        for folder, mode, owner in ((self.temporary, 0o1777, 0), (self.home, 0o700, VICTIM)):
            folder.mkdir()
            folder.chmod(mode)
            os.chown(folder, owner, owner)

    def run(self, user: int, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
        environ = {
            "PATH": os.environ["PATH"], "TMPDIR": str(self.temporary), "HOME": str(self.home), "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1", **environ,
        }  # fmt: skip
        # Root's Python may lie where other users cannot read: so may they read everything, and write as they may.
        capability = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
        become = ("setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups", *capability)
        done = subprocess.run([*become, *command], cwd="/", env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done

    def chosen(self, local: bool = False, **environ: str) -> tuple[Path, str]:
        """The folder that our programs choose, checked to be the victim's alone, and what they say."""
        done = self.run(VICTIM, sys.executable, "-c", KEEP.format(local), **environ)
        path, owner, mode = done.stdout.split()
        assert (int(owner), int(mode, 8)) == (VICTIM, 0o700), done.stdout
        return Path(path), done.stderr


KEEP = "import os; from mpitune.folders import private_folder; p = private_folder({}); s = os.lstat(p); " \
    "print(p, s.st_uid, oct(s.st_mode & 0o7777))"  # fmt: skip


@pytest.fixture
def machine() -> Iterator[Machine]:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can be two users, with setpriv of util-linux")
    base = Path(tempfile.mkdtemp(dir="/tmp"))
    yield Machine(base)
    shutil.rmtree(base)


PLANTS = {
    "a folder": "mkdir -m 777 {place}",
    "a link to a folder": "mkdir -m 777 {place}-real; ln -s {place}-real {place}",
    "a link to the user's own folder": "ln -s {home} {place}",
    "a link to nothing": "ln -s {home}/made-by-following {place}",
    "a file": "echo mine > {place}",
}


def identity(path: Path) -> tuple[int, ...]:
    found = path.lstat()
    return found.st_ino, found.st_mode, found.st_uid, found.st_mtime_ns, found.st_size


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("place", ["cache", "local"])
def test_what_a_stranger_plants_is_refused_with_a_line(machine: Machine, place: str, plant: str) -> None:
    base = machine.temporary if place == "local" else machine.temporary / "cache"
    base.mkdir(exist_ok=True)
    base.chmod(0o1777)
    target = base / (f"{FOLDER_NAME}-{VICTIM}" if place == "local" else FOLDER_NAME)
    machine.run(STRANGER, "sh", "-c", PLANTS[plant].format(place=target, home=machine.home))
    before = identity(target)
    path, said = machine.chosen(local=place == "local", XDG_CACHE_HOME=str(base))
    assert said.count("\n") == 1 and str(target) in said
    assert identity(target) == before and not (machine.home / "made-by-following").exists()
    assert path == machine.home / ".cache" / FOLDER_NAME if place == "cache" else path.parent == machine.temporary


def test_a_fresh_folder_goes_with_its_process_and_is_that_of_its_children(machine: Machine) -> None:
    (machine.temporary / f"{FOLDER_NAME}-{VICTIM}").mkdir()
    code = "import subprocess, sys; " + KEEP.format(True) + \
        f"; subprocess.run([sys.executable, '-c', {KEEP.format(True)!r}])"  # fmt: skip
    done = machine.run(VICTIM, sys.executable, "-u", "-c", code)
    mine, child = done.stdout.splitlines()
    assert mine == child and done.stderr.count("\n") == 1
    assert [path.name for path in machine.temporary.iterdir()] == [f"{FOLDER_NAME}-{VICTIM}"]


def test_a_folder_below_one_that_others_can_change_is_refused(machine: Machine) -> None:
    theirs, open_to_all = machine.temporary / "theirs", machine.home / "open"
    machine.run(STRANGER, "mkdir", "-m", "777", str(theirs))
    machine.run(VICTIM, "mkdir", "-m", "777", str(open_to_all))
    machine.run(STRANGER, "ln", "-s", str(machine.home), str(machine.temporary / "link"))
    for base, reason in (
        (theirs, f"{theirs} belongs to user {STRANGER}"),
        (open_to_all / "below", f"the mode of {open_to_all} is 777"),
        (machine.temporary / "link" / "x", f"{machine.temporary}/link belongs to user {STRANGER}"),
    ):
        path, said = machine.chosen(XDG_CACHE_HOME=str(base))
        assert path == machine.home / ".cache" / FOLDER_NAME and reason in said and said.count("\n") == 1
    assert not list(theirs.iterdir())


def test_the_variable_of_a_library_is_heeded_only_where_it_is_safe(machine: Machine) -> None:
    planted, own = machine.temporary / f"numba-{VICTIM}", machine.home / "numba"
    machine.run(STRANGER, "mkdir", "-m", "777", str(planted))
    code = "import os, mpitune.folders as f; f.set_cache_variables(); print(os.environ['NUMBA_CACHE_DIR'])"
    done = machine.run(VICTIM, sys.executable, "-c", code, NUMBA_CACHE_DIR=str(planted))
    assert done.stdout.strip() == str(machine.home / ".cache" / FOLDER_NAME / "numba")
    assert f"NUMBA_CACHE_DIR={planted} is not used: {planted} belongs to user {STRANGER}" in done.stderr
    for named in (machine.temporary, machine.temporary / "link"):
        machine.run(STRANGER, "ln", "-sfn", str(machine.home), str(machine.temporary / "link"))
        done = machine.run(VICTIM, sys.executable, "-c", code, NUMBA_CACHE_DIR=str(named))
        assert (
            done.stdout.strip() == str(machine.home / ".cache" / FOLDER_NAME / "numba") and done.stderr.count("\n") == 1
        )
    (machine.home / "link").symlink_to(own)
    done = machine.run(VICTIM, sys.executable, "-c", code, NUMBA_CACHE_DIR=str(machine.home / "link"))
    assert done.stdout.strip() == str(own) and done.stderr == ""


def test_a_lock_follows_no_link_and_truncates_nothing(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("ten years of work")
    (tmp_path / "lock").symlink_to(tmp_path / "thesis")
    with pytest.raises(OSError, match="symbolic links"):
        open_lock(tmp_path / "lock")
    os.close(open_lock(tmp_path / "thesis"))
    assert (tmp_path / "thesis").read_text() == "ten years of work"
    os.close(open_lock(tmp_path / "new"))
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600


def test_a_lock_is_not_waited_for_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its owner may be suspended, and the file system may have no locks, as some homes on NFS."""
    with locked(tmp_path / "lock"):
        begin = time.monotonic()
        with locked(tmp_path / "lock", 0.2):
            assert time.monotonic() - begin >= 0.2
    assert "has been locked for 0.2 s: not waited for any longer" in caplog.text

    def no_locks(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with locked(tmp_path / "lock"):
        pass
