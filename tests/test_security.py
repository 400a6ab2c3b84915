"""Files of strangers run no code, exhaust nothing, and what a study keeps for itself is private and removed."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import shutil
import stat
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitune import Float, RunOptions, search
from mpitune.errors import Exit, StorageError, UsageError
from mpitune.optimize import door
from mpitune.optimize.objectives import ObjectiveTrial
from mpitune.optimize.steps import LOG
from mpitune.optuna import optimize
from mpitune.storage.files import TRIALS, copy_folder, make_folder, remove_folder, written_whole
from mpitune.storage.history import JOURNAL, read_journal, read_study
from mpitune.storage.journal import is_running
from mpitune.storage.lines import read_header
from mpitune.tools import report, status
from tests.helpers import PATIENCE, ROOT, journal_of, maps_of_sharers, start, studied, wait_for_lines
from tests.install.rooms import rooms


class Trap:
    """Unpickling it creates the file: proof that code was run."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return exec, (f"open({str(self.path)!r}, 'w').close()",)


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    """A trap that works, as the first lines make sure, and is not sprung."""
    path = tmp_path / "sprung"
    pickle.loads(pickle.dumps(Trap(path)))
    assert path.exists()
    path.unlink()
    return Trap(path)


def object_array(trap: Trap) -> bytes:
    """An .npy file of one object, which NumPy reads by unpickling it."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([trap], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def npz(path: Path, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)


def header_of(shape: tuple[int, ...], n_bytes: int) -> bytes:
    """An .npy file whose header says more than there is."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return buffer.getvalue() + bytes(n_bytes)


ARRAYS: dict[str, tuple[Callable[[Path, Trap], Any], str]] = {
    "an array of objects": (lambda path, trap: npz(path, array=object_array(trap)), "t0.npz is damaged"),
    "a member that is a pickle": (lambda path, trap: npz(path, array=pickle.dumps(trap)), "t0.npz is damaged"),
    "a pickle": (lambda path, trap: path.write_bytes(pickle.dumps(trap)), "t0.npz is damaged"),
    "compressed zeros": (
        lambda path, trap: np.savez_compressed(path, array=np.zeros(1 << 24)),
        "t0.npz is damaged .its array is compressed",
    ),
    "a header of terabytes": (
        lambda path, trap: npz(path, array=header_of((1 << 40,), 80)),
        "header of its array is not that of its numbers",
    ),
    "a pipe": (lambda path, trap: (path.unlink(), os.mkfifo(path)), "a pipe or a device"),
}


def test_arrays_of_a_stranger_run_nothing_and_exhaust_nothing(tmp_path: Path, trap: Trap) -> None:
    studied(tmp_path / "r", 1, array_size=3)
    for write, words in ARRAYS.values():
        write(tmp_path / "r" / "arrays" / "t0.npz", trap)
        with pytest.raises(UsageError, match=words):
            read_study(tmp_path / "r").results["t0"].arrays["array"]
        assert not trap.path.exists()


def test_a_journal_of_a_stranger_is_data_only(program: Any, tmp_path: Path, trap: Trap) -> None:
    """Keys that look like paths stay in the folder; formats that libraries give a meaning to have none here."""
    folder = tmp_path / "r"
    studied(folder, 2, array_size=3)
    lines = [json.loads(line) for line in (folder / JOURNAL).read_text().splitlines()]
    secret = tmp_path / "secret.npz"
    np.savez(secret, array=np.arange(3))
    record = next(line for line in lines if "key" in line)
    for key in ("../secret", "../../secret", str(secret.with_suffix("")), "..", "%2e%2e/secret", "a\0b"):
        poisoned = {**record, "key": key, "params": {"py/object/apply": f"os.system touch {trap.path}"}}
        (folder / JOURNAL).write_bytes(journal_of([*lines, poisoned]))
        history = read_study(folder)
        with pytest.raises(UsageError, match="is damaged"):
            history.results[key].arrays["array"]
    program("-m", "mpitune", "status", folder, status=Exit.STOPPED)
    assert not trap.path.exists()


def test_only_files_are_opened_as_a_journal(tmp_path: Path, capsys: Any) -> None:
    """A pipe would hang, a device or a hole never end, a link lead elsewhere: each is one line, and nothing is read."""
    studied(tmp_path / "sound", 1)
    header = (tmp_path / "sound" / JOURNAL).read_bytes().splitlines(keepends=True)[0]
    for kind in ("pipe", "link", "device", "folder", "hole", "hole after a header"):
        folder = tmp_path / kind
        path = folder / JOURNAL
        folder.mkdir()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind in ("link", "device"):
            path.symlink_to("/dev/zero" if kind == "device" else tmp_path / "victim")
        else:
            path.write_bytes(header if "header" in kind else b"")
            os.truncate(path, 1 << 36)
        for read in (read_journal, read_header, is_running, lambda folder: studied(folder, 1)):
            if kind.startswith("hole") and read in (read_header, is_running):
                continue
            with pytest.raises((UsageError, OSError)) as raised:
                read(folder)
            assert "\n" not in str(raised.value), kind
        for program in (status.main, report.main):
            assert program([str(folder)]) == Exit.USAGE, kind
            assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "victim").exists()


def test_links_in_a_folder_are_not_followed_for_writing(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "r"
    elsewhere.mkdir()
    (elsewhere / ".mine.123.part").touch()
    studied(folder, 2, array_size=3)
    shutil.rmtree(folder / "arrays")
    (folder / "arrays").symlink_to(elsewhere)
    with pytest.raises(UsageError, match="arrays is a link"):
        studied(folder, 2, array_size=3)
    assert [path.name for path in elsewhere.iterdir()] == [".mine.123.part"]
    (folder / "arrays").unlink()
    (tmp_path / "theirs").write_text("as it was")
    (folder / "figures").symlink_to(elsewhere)
    for name in ("trials.csv", "report.html"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(tmp_path / "theirs")
    studied(folder, 2, array_size=3)
    with pytest.raises(OSError, match="figures is a link"), written_whole(folder / "figures" / "curve.svg"):
        pass
    assert (tmp_path / "theirs").read_text() == "as it was"
    assert not (folder / "trials.csv").is_symlink() and len(list(elsewhere.iterdir())) == 1
    (tmp_path / "link").symlink_to(elsewhere)
    with written_whole(tmp_path / "link" / "curve.svg") as file:  # whose folder is no study's
        file.write(b"")


def test_links_in_folders_of_trials_are_not_followed(tmp_path: Path) -> None:
    """A trial's folder, what is written there, what is removed, and what a later stage takes over."""

    def objective(trial: ObjectiveTrial) -> Iterator[dict[str, float]]:
        for step in range(trial.start + 1, 3):
            (trial.folder / "checkpoint").write_text(f"{step}")
            yield {"step": step, "loss": trial.params["x"]}

    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "r"
    (elsewhere / "t000003-0").mkdir(parents=True)
    (elsewhere / "theirs").write_text("as it was")

    def searched(n_trials: int) -> list[str]:
        how: dict[str, Any] = dict(minimize="loss", workers=1, results=folder, options=RunOptions(quiet=True))
        study = search(objective, {"x": Float(0, 1)}, n_trials=n_trials, window=1, **how)
        assert sorted(path.name for path in elsewhere.iterdir()) == ["t000003-0", "theirs"]
        assert (elsewhere / "theirs").read_text() == "as it was"
        return [(trial.error or "").split("\n")[-1] for trial in study.trials]

    assert searched(1) == [""]
    trials = folder / TRIALS
    assert (trials / "t000000" / "checkpoint").read_text() == "2"
    (trials / "t000001").symlink_to(elsewhere)
    (trials / "t000002").mkdir()
    (trials / "t000002" / LOG).symlink_to(elsewhere / "theirs")
    (trials / "t000003").mkdir()
    os.mkfifo(trials / "t000003" / LOG)
    os.mkfifo(trials / "t000004")
    kinds = [
        ("t000001", "a link or no folder"),
        (f"t000002/{LOG}", "a link, a pipe or a device"),
        ("t000004", "a link"),
    ]
    for name, kind in kinds:
        with pytest.raises(StorageError, match=f"{name.replace('/', '.*')} cannot be read or written .it is {kind}"):
            searched(5)
        (trials / name).unlink()
    assert searched(5) == [""] * 5
    trials.rename(tmp_path / "moved")
    trials.symlink_to(elsewhere)
    with pytest.raises(UsageError, match="trials is a link"):
        searched(6)
    with pytest.raises(OSError, match="trials is a link"):
        make_folder(trials / "new" / "below")
    remove_folder(trials / "t000003-0")
    assert (elsewhere / "t000003-0").exists()


def test_a_checkpoint_is_handed_on_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "r" / TRIALS).mkdir(parents=True)
    (tmp_path / "r" / JOURNAL).touch()
    old, new = (tmp_path / "r" / TRIALS / name for name in ("t000000", "t000001-1"))
    (old / "step3").mkdir(parents=True)
    (old / "step3" / "weights").write_text("3")
    (old / LOG).write_text("steps")
    (old / "latest").symlink_to("step3")
    (old / "best").symlink_to(old / "step3" / "weights")
    (old / "zeros").symlink_to("/dev/zero")
    copy_folder(old, new, [LOG])
    (old / "step3" / "weights").unlink()
    assert (new / "latest" / "weights").read_text() == (new / "best").read_text() == "3"
    assert not (new / LOG).exists()
    assert os.readlink(new / "zeros") == "/dev/zero"
    assert sorted(path.name for path in new.parent.iterdir()) == ["t000000", "t000001-1"]
    os.mkfifo(old / "pipe")
    copy_folder(old, new.with_name("t000002-1"))  # which is no part of a checkpoint
    assert not (new.with_name("t000002-1") / "pipe").exists()
    (tmp_path / "r" / TRIALS / "t000003").symlink_to(new)
    with pytest.raises(OSError, match="t000003 is a link"):
        copy_folder(tmp_path / "r" / TRIALS / "t000003", new.with_name("t000004-1"))
    assert sorted(path.name for path in new.parent.glob("*")) == ["t000000", "t000001-1", "t000002-1", "t000003"]


# Each image in a child of its own, which has imported all, so that the memory it takes can be told.


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_shared_memory_and_temporary_files_are_private_and_removed(tmp_path: Path, monkeypatch: Any) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    old = os.umask(0)  # the least careful user there is
    try:
        job = start(tmp_path / "r", "20", "--data-size", "100000", "--seconds", "0.2")
    finally:
        os.umask(old)
    wait_for_lines(tmp_path / "r", 2)
    maps = maps_of_sharers(job.pid, 3).values()
    assert sum("/memfd:search (deleted)" in text for text in maps) == 3, "a rank and two workers share the data"
    assert not any("/dev/shm/" in text for text in maps), "nothing of it has a name that others could open"
    for path in temporary.rglob("*"):
        assert stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0, path
    job.communicate(timeout=PATIENCE)
    assert job.returncode == Exit.DONE
    assert not list(temporary.iterdir())


def test_nothing_in_the_code_unpickles_files() -> None:
    """The ways to run code from a file that Python's libraries offer occur nowhere; torch.load is told not to.

    Lines that may: what a process of the same job has sent (the experiment, tasks, what rank 0 heard, what a keeper's
    worker does, batches and results by the pipe of a worker, calls of joblib and what they return or raise, the outcome
    of a search, stages of Ray's trials and what they answer); and the script that a user names.
    """
    allowed = (
        "pickle.loads(setup.experiment)", 'pickle.loads(data["tasks"]', "vars(search)[name] = pickle.loads(value)",
        "exec(self.code or self._found(), vars(self.main))", "pickle.load(incoming)",
        "pickle.loads(memoryview(self.arrived)",
        'pickle.loads(result.arrays["result"].data', "pickle.loads(content)", "pickle.loads(self._content)",
        "pickle.loads(self._begun)", "pickle.loads(self._stages[", "pickle.loads(answer.messages)",
    )  # fmt: skip
    for package in sorted(rooms()):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            for line in allowed:
                text = text.replace(line, "")
            for word in ("pickle.load", "allow_pickle=True", "joblib.load", "shelve", "yaml.load", " eval(", " exec("):
                assert word not in text, f"{path.name} uses {word.strip()}"
            assert text.count("torch.load(") <= text.count("weights_only=True"), path.name
            assert text.count("np.load(") <= text.count("allow_pickle=False"), path.name


HOSTILE: list[tuple[tuple[str, ...], Any]] = [
    ((), [[]]), (("number",), 3), (("complete",), "COMPLETE"),
    (("params",), []), (("params", "x"), [0.5, "{}"]), (("params", "x"), ["inf", "{}"]),
    (("params", "x"), [2**70, '{"name": "CategoricalDistribution", "attributes": {"choices": [1]}}']),
    (("steps",), [[]]), (("system_attrs",), 1e300), (("state",), "RUNNING"), (("stopped",), {}),
    (("values",), []), (("values",), ["1e999"]), (("study",), None), (("cause",), 3),
    *((path, {"@mpitune:number": "nan"}) for path in (("study",), ("user_attrs",), ("system_attrs",))),
]  # fmt: skip


@pytest.mark.slow
def test_a_strangers_journal_of_optuna_is_one_line_and_runs_no_code(tmp_path: Path, trap: Trap) -> None:
    """CMA-ES keeps a pickle of itself in the attributes of a trial."""
    optuna = pytest.importorskip("optuna")
    pytest.importorskip("cmaes")
    folder = tmp_path / "r"

    def run(n: int) -> None:
        door.studies_in.clear()  # as in the next process
        sampler = optuna.samplers.CmaEsSampler(seed=1, popsize=4)
        study = optuna.create_study(sampler=sampler, study_name="s")
        how = RunOptions(results=folder, workers=0, quiet=True)
        optimize(study, lambda trial: trial.suggest_float("x", 0, 1) * trial.suggest_float("y", 0, 1), n, options=how)

    run(7)
    whole = [json.loads(line) for line in (folder / JOURNAL).read_bytes().splitlines()]
    code = {f"{kind}:optimizer:0": pickle.dumps(trap).hex() for kind in ("cma", "cmawm", "sepcma")}
    for *path, value in [*((*path, value) for path, value in HOSTILE), ("system_attrs", code)]:
        records = copy.deepcopy(whole)
        (said,) = (record["ending"] for record in records if record.get("key") == "t000006")
        *way, last = "for_door", *path
        for name in way:
            said = said[name]
        said[last] = value
        (folder / JOURNAL).write_bytes(journal_of(records))
        if value is code:
            run(9)
        else:
            with pytest.raises(UsageError, match=r"^trial 6 in the journal is none that Optuna could have.*restart="):
                run(9)
    assert not trap.path.exists()


def test_a_model_of_a_stranger_is_refused(tmp_path: Path, trap: Trap) -> None:
    torch = pytest.importorskip("torch")
    from mnist_nn.predict import Predict, judge

    torch.save({"conv.weight": trap}, tmp_path / "model.pt")
    (tmp_path / "model.json").write_text(
        '{"image": [8, 8, 255], "parameters": {"n_conv_layer": 1, "kernel_size": 3, "n_hidden_layer": 2}}'
    )
    with pytest.raises(UsageError, match="model.pt cannot be read"):
        judge(Predict(tmp_path, (tmp_path / "image.png",)))
    assert not trap.path.exists()
