"""A finished study of three jobs, damaged at random: it never says complete with less, hangs, or ends without a word.

`CASES=20000 python -m tests.mpitune.engine.test_joined_damaged` makes that many, and fails at the first.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from mpitune.errors import Exit, UsageError
from mpitune.options import RunOptions
from mpitune.storage.arrays import StoredArrays, array_path
from mpitune.storage.history import NAME, read_study
from mpitune.storage.records import with_checksum
from mpitune.studies import run_study
from mpitune.tools.status import status_of
from tests.helpers import ROOT
from tests.toys import Toy

N, BEATS = 9, 0.2  # trials; seconds of --heartbeat-timeout, of which three are waited for a silent job
LIMIT = 100  # seconds, after which a job hangs; it ends within a second on a quiet machine
DAY = 86400.0


def joined_study(folder: Path) -> dict[str, dict[str, float]]:
    """The results of one job, which are then told by three; returns their values."""
    work(folder)
    (job,) = (path.parent for path in folder.glob(f"jobs/*/{NAME}"))
    first, *lines = (job / NAME).read_bytes().splitlines(keepends=True)
    trials = [line for line in lines if b'"key"' in line]
    run, end = (next(line for line in lines if mark in line) for mark in (b'{"run"', b'{"end"'))
    for number, name in enumerate("abc"):
        shutil.copytree(job, other := job.parent / name)
        (other / NAME).write_bytes(b"".join([first, run, *trials[number::3], end]))
    shutil.rmtree(job)
    history = read_study(folder)
    assert history.complete and len(history.results) == N
    return {key: dict(result.values) for key, result in history.results.items()}


def work(folder: str | Path) -> None:
    options = RunOptions(join=True, workers=0, results=Path(folder), quiet=True, heartbeat_timeout=BEATS)
    run_study(Toy(N, array_size=2), options)


# What happens to a file or a folder: some to lines of a journal, some to anything.


def cut(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size + 1))


def flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes() or b"x")
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def lines_lost(path: Path, rng: random.Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if rng.random() < 0.8))


def lines_moved(path: Path, rng: random.Random) -> None:
    first, *lines = path.read_bytes().splitlines(keepends=True) or [b""]
    path.write_bytes(first + b"".join(rng.choices(lines, k=len(lines) + 1)) if lines else first)


def of_another_study(path: Path, rng: random.Random) -> None:
    first, *lines = path.read_bytes().splitlines(keepends=True) or [b"{}"]
    header = {**json.loads(first), "settings": {"experiment": "another", "n": 1}}
    header.pop("crc", None)
    path.write_bytes(with_checksum(json.dumps(header).encode()) + b"\n" + b"".join(lines))


def clock(path: Path, rng: random.Random) -> None:
    shift = rng.choice([-DAY, DAY])
    os.utime(path, (0, time.time() + shift))
    if path.name != NAME:
        return
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines):
        record = json.loads(line)
        record.pop("crc")
        if "run" in record:
            record["run"]["began"] += shift
            lines[number] = with_checksum(json.dumps(record).encode())
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def lost(path: Path, rng: random.Random) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def put(make: Callable[[Path], Any]) -> Callable[[Path, random.Random], None]:
    def instead(path: Path, rng: random.Random) -> None:
        lost(path, rng)
        make(path)

    return instead


def hole(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(20 << 30)


def noise(path: Path, rng: random.Random) -> None:
    path.write_bytes(
        rng.choice([b"", b"\xff\xfe", b"\0", b'{"job":"\xff"}', b'{"job":"a\\u0000","batches":[]}', rng.randbytes(50)])
    )


def closed(path: Path, rng: random.Random) -> None:
    path.chmod(rng.choice([0, 0o200, 0o400]))  # root reads it all the same


ANYTHING = [lost, put(Path.mkdir), put(os.mkfifo), put(lambda path: path.symlink_to("/dev/zero")), noise, closed]
JOURNALS = [*ANYTHING, put(hole), cut, cut, flip, flip, lines_lost, lines_lost, lines_moved, of_another_study, clock]
FOLDERS = [lost, put(Path.touch), put(os.mkfifo), put(lambda path: path.symlink_to(".")), closed]


def claim(folder: Path, rng: random.Random) -> None:
    """By somebody: a job that has ended, or never was, or is no name; of any batches."""
    names = [f"t{number}" for number in range(N)] + ["x"]
    content = {"job": rng.choice(["a", "nobody", "", "../../x", "x" * 300]), "batches": rng.sample(names, 4)}
    number = len(list((folder / "jobs/claims").iterdir())) + 1
    (folder / f"jobs/claims/{number:08}").write_text(json.dumps(content))


def past(path: Path, rng: random.Random) -> None:
    """A job with the same results."""
    shutil.copytree(path.parent, path.parent.with_name(f"{path.parent.name}-{rng.random()}"), symlinks=True)


def damage(folder: Path, rng: random.Random) -> bool:
    """Damage something; returns whether it was only what no result depends on."""
    job = folder / "jobs" / rng.choice("abc")
    arrays = sorted(job.glob("arrays/*")) or [job / "alive"]
    claims = sorted((folder / "jobs/claims").glob("0*")) or [job / "alive"]
    kind = rng.choice(
        ["journal"] * 4 + ["main", "folder", "arrays", "array", "alive", "alive", "claim", "claims", "past"]
    )
    paths = {
        "journal": job / NAME, "main": folder / NAME, "past": job / NAME, "folder": job, "arrays": job / "arrays",
        "array": rng.choice(arrays), "alive": job / "alive", "claim": rng.choice(claims), "claims": folder,
    }  # fmt: skip
    kinds = {
        "journal": JOURNALS, "main": JOURNALS, "past": [past], "folder": FOLDERS, "arrays": FOLDERS,
        "array": ANYTHING, "alive": [*ANYTHING, clock, clock], "claim": [*ANYTHING, put(hole), cut, flip],
        "claims": [claim],
    }  # fmt: skip
    with suppress(OSError, ValueError, KeyError):  # it was damaged before
        it = paths[kind].lstat()
        if it.st_size < 1 << 20 and (stat.S_ISREG(it.st_mode) or stat.S_ISDIR(it.st_mode)):
            rng.choice(kinds[kind])(paths[kind], rng)
    return kind in ("alive", "claim", "claims")


def check(folder: Path, values: dict[str, dict[str, float]], rng: random.Random, how: str) -> str:
    """Damage a study, look at it, and go on with it in some `how`; returns what came of it."""
    damages = [damage(folder, rng) for _ in range(rng.randint(1, 3))]
    was = looked(folder, values)
    assert was == "complete" or not all(damages)
    if how == "look":
        return was
    said = ""
    try:
        if how == "here":
            work(folder)
        else:
            command = [sys.executable, "-c", f"from {__spec__.name} import work; work({str(folder)!r})"]
            jobs = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(2)]
            said = "".join(job.communicate(timeout=LIMIT)[1] for job in jobs)
            assert {job.returncode for job in jobs} <= {Exit.DONE, Exit.USAGE, Exit.ERROR}, said
            if {job.returncode for job in jobs} != {Exit.DONE}:
                raise UsageError(said.splitlines()[-1])
    except UsageError as error:
        assert "\n" not in str(error) and str(folder) in str(error), said or error
        assert was == "refused" or "written" in str(error) or "holds a study with experiment = another" in str(error)
        return "refused"
    assert looked(folder, values) == "complete", said
    return "whole again"


def looked(folder: Path, values: dict[str, dict[str, float]]) -> str:
    """What readers say of the study. None of them takes a part for the whole."""
    try:
        history = read_study(folder)
    except UsageError as error:
        assert "\n" not in str(error) and str(folder) in str(error), error
        return "refused"
    found = status_of(folder, history, False)
    assert (found.exit == Exit.DONE) == history.complete == (found.state == "complete")
    if history.complete:
        assert {key: dict(result.values) for key, result in history.results.items()} == values and found.finished == N
        for result in history.results.values():
            assert isinstance(result.arrays, StoredArrays)
            assert os.path.lexists(array_path(result.arrays.folder, result.key))
    return "complete" if history.complete else "stopped"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, float]]]:
    folder = tmp_path_factory.mktemp("joined") / "r"
    return folder, joined_study(folder)


def run_cases(base: tuple[Path, dict[str, dict[str, float]]], cases: Iterable[tuple[int, str]]) -> Counter[str]:
    came: Counter[str] = Counter()
    for seed, how in cases:
        with TemporaryDirectory() as place:
            shutil.copytree(base[0], folder := Path(place, "r"))
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            try:
                came[f"{how}: {check(folder, base[1], random.Random(seed), how)}"] += 1
            except BaseException:
                print(f"seed {seed}, {how}", file=sys.stderr)
                raise
            finally:
                faulthandler.cancel_dump_traceback_later()
                for path in [folder, *folder.rglob("*")]:  # or it cannot be removed
                    if not path.is_symlink():
                        path.chmod(0o700)
    return came


@pytest.mark.parametrize(("how", "seeds"), [("look", range(200)), ("here", range(13, 20))])
def test_a_damaged_study_is_not_complete_until_it_is(
    base: tuple[Path, dict[str, dict[str, float]]], how: str, seeds: range
) -> None:
    came = run_cases(base, ((seed, how) for seed in seeds))
    assert came.total() == len(seeds) and len(came) > 1


@pytest.mark.slow
def test_jobs_mend_a_damaged_study(base: tuple[Path, dict[str, dict[str, float]]]) -> None:
    assert run_cases(base, ((seed, "jobs") for seed in range(1000, 1008))).total() == 8


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        whole, n = Path(place, "r"), int(os.environ.get("CASES", "20000"))
        hows = ["jobs" if n % 400 == 0 else "here" if n % 20 == 0 else "look" for n in range(n)]
        print(run_cases((whole, joined_study(whole)), enumerate(hows)))
