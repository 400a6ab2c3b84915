"""Checks in a process of their own: what they find, however they end, and that one is enough."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mpitune.devices import selfcheck
from mpitune.devices.selfcheck import check
from tests.helpers import ROOT, wait_for_the_end_of, wait_until
from tests.stand_ins import A, Machine

CHECKS = "tests.mpitune.devices.checks"
KEY = {"gpu": "NVIDIA L4", "driver": "550.54", "sources": "12ab"}


def test_all_is_right(tmp_path):
    verdict = check(CHECKS, KEY, "well", folder=tmp_path)
    assert verdict.trusts("first") and verdict.trusts("second") and verdict.problem == "" and not verdict.kept
    assert not verdict.trusts("what nobody tried")


def test_what_is_wrong_is_said(tmp_path):
    verdict = check(CHECKS, KEY, "wrong", folder=tmp_path)
    assert verdict.trusts("first") and not verdict.trusts("second")
    assert verdict.problem == "second: differs by 3e-2"


@pytest.mark.parametrize("how, ended", [("crash", "killed by SIGSEGV"), ("raise", "ended with status 1")])
def test_a_crash_takes_back_nothing_that_was_found_before(tmp_path, monkeypatch, how, ended):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    verdict = check(CHECKS, KEY, how, folder=tmp_path)
    assert verdict.trusts("first") and not verdict.trusts("second")
    assert ended in verdict.problem and "after 'first'" in verdict.problem
    if how == "raise":
        assert "illegal memory access" in verdict.problem


def test_a_check_that_hangs_is_killed_with_what_it_started(tmp_path):
    verdict = check(CHECKS, KEY, "hang", str(tmp_path), folder=tmp_path, limit_s=10)
    assert verdict.trusts("first") and "no answer within 10 s" in verdict.problem
    child = int((tmp_path / "child").read_text())
    assert wait_until(lambda: not _lives(child)), "it is killed with the others, and ends soon after"


def test_it_ends_with_the_process_that_asked(tmp_path):
    code = f"from mpitune.devices.selfcheck import run; run({CHECKS!r}, 'hang', {str(tmp_path)!r})"
    asking = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    try:
        while not (tmp_path / "child").exists():
            assert asking.poll() is None
            time.sleep(0.05)
        checking = int((tmp_path / "starts").read_text())
    finally:
        asking.kill()
        asking.wait()
    while _lives(checking):  # the test's own limit ends this
        time.sleep(0.05)
    os.kill(int((tmp_path / "child").read_text()), 9)


def test_one_check_is_enough_for_all_who_ask(tmp_path):
    code = (
        "import sys; from pathlib import Path; from mpitune.devices.selfcheck import check\n"
        f"verdict = check({CHECKS!r}, {KEY!r}, 'slow', {str(tmp_path)!r}, folder=Path({str(tmp_path)!r}))\n"
        "print(verdict.trusts('second'), verdict.kept)"
    )
    asking = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    answers = sorted(process.communicate()[0].strip() for process in asking)
    assert answers == ["True False", "True True", "True True"]
    assert len((tmp_path / "starts").read_text().split()) == 1


def test_a_verdict_holds_for_its_key_alone(tmp_path):
    def starts() -> int:
        return len((tmp_path / "starts").read_text().split())

    for key in (KEY, KEY, {**KEY, "driver": "560.1"}, {**KEY, "sources": "other"}):
        check(CHECKS, key, "well", str(tmp_path), folder=tmp_path)
    assert starts() == 3
    check(CHECKS, KEY, "well", str(tmp_path), folder=tmp_path, again=True)
    assert starts() == 4


def test_a_crash_is_tried_again_after_a_while(tmp_path, monkeypatch):
    first = check(CHECKS, KEY, "raise", str(tmp_path), folder=tmp_path)
    assert not first.kept and check(CHECKS, KEY, "raise", str(tmp_path), folder=tmp_path).kept
    monkeypatch.setattr(selfcheck, "AGAIN_S", 0.0)
    assert not check(CHECKS, KEY, "raise", str(tmp_path), folder=tmp_path).kept


@pytest.mark.parametrize("content", ["", "null", "{}", '{"key": 1}', '{"key": null, "findings": 3, "surplus": 1}'])
def test_a_damaged_verdict_is_made_again(tmp_path, content):
    check(CHECKS, KEY, "well", folder=tmp_path)
    (file,) = tmp_path.glob("check-*.json")
    file.write_text(content)
    assert not check(CHECKS, KEY, "well", folder=tmp_path).kept
    assert json.loads(file.read_text())["findings"] == {"first": "", "second": ""}


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path):
    check(CHECKS, KEY, "well", folder=tmp_path)
    (lock,) = tmp_path.glob("check-*.lock")
    lock.unlink()
    lock.symlink_to(tmp_path / "elsewhere")
    verdict = check(CHECKS, KEY, "well", folder=tmp_path)
    assert verdict.trusts("second") and not verdict.kept and not (tmp_path / "elsewhere").exists()


def test_the_digest_depends_on_every_file(tmp_path):
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "b.py").write_text("2")
    before = selfcheck.digest(tmp_path)
    assert selfcheck.digest(tmp_path) == before
    (tmp_path / "b.py").write_text("3")
    assert selfcheck.digest(tmp_path) != before and selfcheck.digest(tmp_path / "a.py") != before


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split(")")[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


# In a study


STUDY = """
import os, time
from dataclasses import dataclass
from pathlib import Path

from mpitune.cli import run
from mpitune.experiment import Experiment, one_round, per_trial
from mpitune.devices.selfcheck import Verdict, check
from mpitune.settings import setting
from mpitune.trial import Trial

FOLDER = Path(__file__).resolve().parent


def verdict(what):
    found = check("tests.mpitune.devices.checks", {}, what, str(FOLDER))
    with (FOLDER / "checked").open("a") as file:  # the check may end after the worker, which only reads its verdict
        file.write(os.environ["CUDA_VISIBLE_DEVICES"] + f"{found.kept}\\n")
    return found


@dataclass(frozen=True)
class Study(Experiment):
    n: int = setting(help="trials")

    def self_checks(self):
        return [("study:verdict", "slow")]

    def data(self):
        while not (FOLDER / "starts").exists():  # until the check runs
            time.sleep(0.05)
        return {}

    def searches(self):
        yield one_round(Trial(f"t{i}", {"i": i}) for i in range(self.n))

    def objective(self, worker):
        kept = verdict("slow").kept
        return per_trial(lambda trial: {"kept": float(kept)})


if __name__ == "__main__":
    run(Study)
"""


def test_the_data_are_loaded_while_the_gpu_is_checked(program: Any, tmp_path: Path) -> None:
    """Loading waits here until the check has begun; a worker waits for its verdict, and nothing is checked twice."""
    (tmp_path / "study.py").write_text(STUDY)
    environ = Machine(tmp_path / "machine").environ()
    environ["PYTHONPATH"] += f":{tmp_path}"
    done = program(tmp_path / "study.py", 2, "--gpu", 0, "--results", tmp_path / "r", env=environ)
    assert "the data are loaded; 1 GPUs are still being checked" in done.stderr
    lines = [json.loads(line) for line in (tmp_path / "r" / "journal.jsonl").read_text().splitlines()]
    assert [line["values"] for line in lines if "key" in line] == [{"kept": 1.0}] * 2
    assert len((tmp_path / "starts").read_text().splitlines()) == 1
    assert f"{A}True" in (tmp_path / "checked").read_text().splitlines()


@pytest.mark.slow
def test_a_check_ends_with_the_study(program: Any, tmp_path: Path) -> None:
    source = STUDY.replace('"slow")]', '"hang")]').replace('verdict("slow").kept', "True")
    (tmp_path / "study.py").write_text(source)
    environ = Machine(tmp_path / "machine").environ()
    environ["PYTHONPATH"] += f":{tmp_path}"
    program(tmp_path / "study.py", 1, "--gpu", 0, "--results", tmp_path / "r", env=environ)
    wait_for_the_end_of({int(pid) for pid in (tmp_path / "starts").read_text().split()})
