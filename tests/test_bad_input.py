"""Command lines that cannot work: one clear line on stderr, exit status 2, no traceback, and nothing written.

In this process wherever the program refuses before it would start a worker, so that the table is cheap.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from common import data
from mnist_nn import ddp
from mnist_nn.experiment import Bagging
from mnist_svm.experiment import SvmGrid
from mpitune import cli
from mpitune.errors import Exit
from mpitune.storage.history import JOURNAL
from mpitune.storage.journal import Journal
from mpitune.tools import doctor, report, status
from tests.helpers import HEADER, write_files


def svm(arguments: Sequence[str]) -> int:
    return cli.main(SvmGrid, arguments)


def nn(arguments: Sequence[str]) -> int:
    return cli.main(Bagging, arguments)


PROGRAMS: dict[str, Callable[[Sequence[str]], int]] = {
    "svm": svm, "nn": nn, "data": data.main, "status": status.main, "doctor": doctor.main,
    "ddp": ddp.main, "report": report.main,
}  # fmt: skip

DIGITS = "--dataset digits --gpu none --workers 1"

# Command line (words are split at blanks; see `words` for what stands for odd ones) -> what the line must say.
REFUSED = {
    # what is missing, or too much
    "svm": "required: n_tuning",
    "svm 3 4": "unrecognized arguments: 4",
    "svm 3 --no-such-option": "--no-such-option",
    "svm 3 --fold 5": "--fold",  # no abbreviations
    "svm 3 --folds": "--folds: expected one argument",
    "svm 3 --folds 5 --folds 6": "--folds is given twice",
    # numbers
    "svm 0": "0 is too small: give at least 1",
    "svm 301": "301 is too large: give at most 300",
    "svm NINES": "is not a whole number",
    "svm 2.5": "'2.5' is not a whole number",
    "nn 2 1000000000": "n_tuning: 1000000000 is too large",
    "nn 2 2 --tolerance nan": "'nan' is not a number",
    "nn 2 2 --seed -1": "-1 is too small",
    # choices
    "svm 3 --dataset cifar10": "'cifar10' is not one of mnist, fashion-mnist, digits",
    # how it is run
    "svm 3 --gpu 0": "--gpu 0, but no GPU is visible",
    "nn 2 2 --gpu all": "--gpu all, but no GPU is visible",
    "nn 2 2 --gpu 0,,1": "--gpu 0",
    "nn 2 2 --gpu cuda:0": "--gpu 'cuda:0': give positions",
    "nn 2 2 --gpu GPU-;reboot": "--gpu 'GPU-;reboot'",
    "svm 3 --workers 2": "--gpu none",
    "svm 3 --gpu none --workers 0": "--workers: 0 is too small",
    "svm 3 --trial-timeout 0": "--trial-timeout: 0 is too small",
    "svm 3 --trial-timeout inf": "--trial-timeout: inf is too large: give at most 1000000000",
    "nn 2 2 --grace -1": "--grace: -1 is too small: give at least 0",
    "svm 3 --memory 1e400": "--memory: 1e400 is too large: give at most 1000000",
    "svm 3 --worker-folders a-file": "worker_folders='a-file' is no folder",
    "svm 3 --expect-nodes 4": "--expect-nodes 4, but there is 1",
    "svm 3 --results EMPTY": "--results: an empty value",
    "svm 3 --results NOT-UTF8": "is not valid UTF-8",
    f"svm 3 {DIGITS} --solver cuml": "--solver cuml needs a GPU: name one with --gpu",
    # files and folders
    f"svm 3 {DIGITS} --results a-file": "results folder a-file cannot be written",
    f"svm 3 {DIGITS} --results a-file/below": "cannot be written",
    f"svm 3 {DIGITS} --results mine": "mine/figures is no part of a study, but one in this folder could overwrite it",
    f"nn 2 2 {DIGITS} --results mine": "mine/figures is no part of a study",
    f"nn 2 2 {DIGITS} --results other": "is not a journal header",
    f"nn 2 2 {DIGITS} --results toys": "holds a study with experiment = toy, "
    "not mnist_nn: give another results folder, or --restart to set the old study aside",
    f"nn 2 2 {DIGITS} --results folder-journal": "cannot be written",
    f"svm 3 {DIGITS} --train-size 1000000000": "--train-size 1000000000 is too large: digits has 1437",
    f"svm 3 {DIGITS} --folds 1000000000": "--folds 1000000000 is too large",
    f"svm 3 {DIGITS} --train-size 12": "give a larger --train-size",
    "svm 3 --gpu none --workers 1 --data damaged": "t10k-images-idx3-ubyte has",
    "svm 3 --gpu none --workers 1 --data a-file": "mnist is not in a-file",
    "data --data damaged": "delete it and fetch the data set again",
    "status": "required: folder",
    "status absent": "absent holds no study",
    "status a-file": "a-file/journal.jsonl cannot be read",
    "status other": "is not a journal header",
    "status newer": "format 999",
    "status folder-journal": "cannot be read",
    "doctor --expect-nodes 2": "--expect-nodes 2, but there is 1",
    "doctor NEWLINE": "unrecognized arguments",
    "ddp --backend nccl --no-cuda": "--backend nccl",
    "ddp --network search": "--network search needs --from RESULTS",
    "ddp --network kubeflow --from toys": "name two networks",
    "report absent": "absent holds no study",
}

WORDS = {"EMPTY": "", "NOT-UTF8": os.fsdecode(b"\xff\xfe"), "NEWLINE": "a\nb", "NINES": "9" * 5000}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with things that are not what they seem."""
    folder = tmp_path_factory.mktemp("bad")
    (folder / "a-file").write_text("mine")
    for name in ("a-folder", "other", "newer", "folder-journal/journal.jsonl"):
        (folder / name).mkdir(parents=True)
    (folder / "mine" / "figures").mkdir(parents=True)
    (folder / "other" / JOURNAL).write_text("a story\nin two lines\n")
    (folder / "newer" / JOURNAL).write_text('{"format": 999, "settings": {"experiment": "mnist_svm"}}\n')
    Journal(folder / "toys", HEADER).close()
    raw = folder / "damaged" / "MNIST" / "raw"
    write_files(raw)
    images = raw / "t10k-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:-5])
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.mark.parametrize("line", REFUSED)
def test_one_line_and_nothing_written(line: str, folder: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    before = contents(folder)
    name, *arguments = line.split()
    assert PROGRAMS[name]([WORDS.get(word, word) for word in arguments]) == Exit.USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    *news, said = printed.err.splitlines()
    assert all(" rank 0 " in each and each.endswith(" s") for each in news), news  # what takes over 10 s is said
    assert REFUSED[line] in said, said
    assert said.isprintable()
    assert contents(folder) == before


def test_the_table_covers_all_programs() -> None:
    assert {line.split()[0] for line in REFUSED} == set(PROGRAMS)


@pytest.mark.slow
def test_names_that_are_no_text_reach_the_program_as_the_shell_gives_them(program: Any, tmp_path: Path) -> None:
    """From outside, with bytes that no encoding has: in a terminal's own encoding and in the plainest one."""
    for locale in ("C.UTF-8", "C"):
        for words in (("mnist_svm", "3", "--results"), ("mpitune", "status")):
            arguments = ("-m", *words, os.fsdecode(b"\xff\xfe"))
            done = program(*arguments, cwd=tmp_path, env={"LC_ALL": locale}, status=Exit.USAGE)
            assert done.stderr.count("\n") == 1 and "is not valid UTF-8" in done.stderr and done.stdout == ""
    assert list(tmp_path.iterdir()) == []
