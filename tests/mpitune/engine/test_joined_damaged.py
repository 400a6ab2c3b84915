"""A finished study of three jobs, damaged at random: it never says complete with less, or ends without a word."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mpitune.errors import Exit, UsageError
from mpitune.options import RunOptions
from mpitune.storage.arrays import StoredArrays, array_path
from mpitune.storage.history import JOURNAL, read_study
from mpitune.storage.records import with_checksum
from mpitune.studies import run_study
from mpitune.tools.status import status_of
from tests.toys import Toy

N, BEATS = 9, 0.2  # trials; seconds of --heartbeat-timeout, of which three are waited for a silent job


def joined_study(folder: Path) -> dict[str, dict[str, float]]:
    """The results of one job, which are then told by three; returns their values."""
    work(folder)
    (job,) = (path.parent for path in folder.glob(f"jobs/*/{JOURNAL}"))
    first, *lines = (job / JOURNAL).read_bytes().splitlines(keepends=True)
    trials = [line for line in lines if b'"key"' in line]
    run, end = (next(line for line in lines if mark in line) for mark in (b'{"run"', b'{"end"'))
    for number, name in enumerate("abc"):
        shutil.copytree(job, other := job.parent / name)
        (other / JOURNAL).write_bytes(b"".join([first, run, *trials[number::3], end]))
    shutil.rmtree(job)
    history = read_study(folder)
    assert history.complete and len(history.results) == N
    return {key: dict(result.values) for key, result in history.results.items()}


def work(folder: Path) -> None:
    options = RunOptions(join=True, workers=0, results=folder, quiet=True, heartbeat_timeout=BEATS)
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


def of_another_study(path: Path, rng: random.Random) -> None:
    first, *lines = path.read_bytes().splitlines(keepends=True) or [b"{}"]
    header = {**json.loads(first), "settings": {"experiment": "another", "n": 1}}
    header.pop("crc", None)
    path.write_bytes(with_checksum(json.dumps(header).encode()) + b"\n" + b"".join(lines))


def lost(path: Path, rng: random.Random) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def put(make: Callable[[Path], Any]) -> Callable[[Path, random.Random], None]:
    def instead(path: Path, rng: random.Random) -> None:
        lost(path, rng)
        make(path)

    return instead


def noise(path: Path, rng: random.Random) -> None:
    path.write_bytes(
        rng.choice([b"", b"\xff\xfe", b"\0", b'{"job":"\xff"}', b'{"job":"a\\u0000","batches":[]}', rng.randbytes(50)])
    )


ANYTHING = [lost, put(Path.mkdir), put(os.mkfifo), put(lambda path: path.symlink_to("/dev/zero")), noise]
JOURNALS = [*ANYTHING, cut, cut, flip, flip, lines_lost, lines_lost, of_another_study]
FOLDERS = [lost, put(Path.touch), put(os.mkfifo), put(lambda path: path.symlink_to("."))]


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
        "journal": job / JOURNAL, "main": folder / JOURNAL, "past": job / JOURNAL, "folder": job,
        "arrays": job / "arrays", "array": rng.choice(arrays), "alive": job / "alive", "claim": rng.choice(claims),
        "claims": folder,
    }  # fmt: skip
    kinds = {
        "journal": JOURNALS, "main": JOURNALS, "past": [past], "folder": FOLDERS, "arrays": FOLDERS,
        "array": ANYTHING, "alive": ANYTHING, "claim": [*ANYTHING, cut, flip],
        "claims": [claim],
    }  # fmt: skip
    with suppress(OSError, ValueError, KeyError):  # it was damaged before
        mode = paths[kind].lstat().st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            rng.choice(kinds[kind])(paths[kind], rng)
    return kind in ("alive", "claim", "claims")


def check(folder: Path, values: dict[str, dict[str, float]], rng: random.Random, goes_on: bool) -> str:
    """Damage a study, look at it, and go on with it if that is asked; returns what came of it."""
    damages = [damage(folder, rng) for _ in range(rng.randint(1, 3))]
    was = looked(folder, values)
    assert was == "complete" or not all(damages)
    if not goes_on:
        return was
    try:
        work(folder)
    except UsageError as error:
        assert "\n" not in str(error) and str(folder) in str(error)
        assert was == "refused" or "written" in str(error) or "holds a study with experiment = another" in str(error)
        return "refused"
    assert looked(folder, values) == "complete"
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


@pytest.mark.parametrize(("goes_on", "seeds"), [(False, range(150)), (True, range(13, 20))], ids=["look", "go on"])
def test_a_damaged_study_is_not_complete_until_it_is(
    base: tuple[Path, dict[str, dict[str, float]]], goes_on: bool, seeds: range, tmp_path: Path
) -> None:
    came: Counter[str] = Counter()
    for seed in seeds:
        shutil.copytree(base[0], folder := tmp_path / str(seed))
        came[check(folder, base[1], random.Random(seed), goes_on)] += 1
        shutil.rmtree(folder)
    assert came.total() == len(seeds) and len(came) > 1
