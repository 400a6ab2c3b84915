"""Jobs that join a study: real processes on one folder, killed, suspended and stopped; the table is that of one job."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mpitune import Experiment, Float, Trial, one_round, per_trial, search
from mpitune.engine.joined import JoinedStudy
from mpitune.engine.lives import Lives
from mpitune.errors import Exit, StudyError, UsageError
from mpitune.options import RunOptions
from mpitune.storage.history import JOURNAL, read_study
from mpitune.storage.jobs import Claim, Claims, Follower
from mpitune.storage.journal import join
from mpitune.storage.records import written_trial
from mpitune.studies import run_study
from mpitune.tools.status import status_of
from tests.helpers import PATIENCE, journal_lines, outcome, start, studied, table_without_run, wait_until
from tests.toys import Toy

STUDY = ("12", "--courses", "2", "--rounds", "2", "--batch-trials", "2", "--array-size", "4")
SAME: dict[str, Any] = {"courses": 2, "rounds": 2, "batch_trials": 2, "array_size": 4}  # in this process
N_TRIALS = 48
SOON = ("--heartbeat-timeout", "1")  # a job counts as gone after three times as long


def joins(folder: Path, *arguments: Any) -> subprocess.Popen[str]:
    return start(folder, *STUDY, "--join", *SOON, *arguments)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the same study by one job."""
    folder = tmp_path_factory.mktemp("alone")
    studied(folder, 12, **SAME)
    return folder


def joined(folder: Path) -> None:
    """A job that joins, in this process."""
    run_study(Toy(12, **SAME), RunOptions(join=True, workers=0, results=folder, quiet=True, heartbeat_timeout=1.0))


def require_equal(folder: Path, alone: Path, most: int = N_TRIALS) -> None:
    """The table and the arrays are those of one job, and at most so many trials were evaluated."""
    assert table_without_run(folder / "trials.csv") == table_without_run(alone / "trials.csv")
    assert (folder / "report.html").exists()
    keys = Counter(line["key"] for line in journal_lines(folder))
    assert len(keys) == N_TRIALS and keys.total() <= most
    ours, theirs = read_study(folder), read_study(alone)
    assert ours.complete and not ours.open
    for key, result in theirs.results.items():
        assert list(ours.results[key].arrays["array"]) == list(result.arrays["array"])


def test_jobs_may_end_in_any_way(alone: Path, tmp_path: Path) -> None:
    """The first is killed, one is suspended for longer than jobs are waited for, one is told to stop."""
    first, second, third = (joins(tmp_path, "--seconds", "0.3") for _ in range(3))
    assert wait_until(lambda: sum(bool(journal_lines(at.parent)) for at in tmp_path.glob("jobs/*/journal.jsonl")) == 3)
    os.killpg(first.pid, signal.SIGKILL)
    os.killpg(second.pid, signal.SIGSTOP)
    begun = len(journal_lines(tmp_path))
    assert wait_until(lambda: len(journal_lines(tmp_path)) > begun)
    third.terminate()
    assert third.wait() == Exit.STOPPED
    last = joins(tmp_path, "--seconds", "0.1")
    assert last.wait() == Exit.DONE
    os.killpg(second.pid, signal.SIGCONT)
    assert second.wait() == Exit.DONE
    require_equal(tmp_path, alone, most=N_TRIALS + 4)  # what the sleeper had in its two workers and ahead


def test_failures_before_any_success_hold_no_job_up(tmp_path: Path) -> None:
    """They are kept back until it is known whether anything works. The job goes on meanwhile and tells them last."""
    failing = [f"t{n}=exception" for n in range(6)]
    jobs = [start(tmp_path, "6", "--join", *SOON, "--at", *failing) for _ in range(2)]
    said = [job.communicate(timeout=PATIENCE)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [Exit.FAILED_TRIALS] * 2, said
    history = read_study(tmp_path)
    assert history.complete and len(history.results) == 6
    assert all(result.failed for result in history.results.values())


def test_a_job_where_all_fails_tells_it_where_those_with_success_have_ended(tmp_path: Path) -> None:
    studied(tmp_path / "whole", 6)
    lines = (tmp_path / "whole" / JOURNAL).read_text().splitlines(True)
    ended = [line for line in lines if not any(f'"key":"t{n}"' in line for n in (3, 4, 5))]
    (tmp_path / "r/jobs/site").mkdir(parents=True)
    (tmp_path / "r/jobs/site" / JOURNAL).write_text("".join(ended))
    options = RunOptions(join=True, workers=0, results=tmp_path / "r", quiet=True)
    outcomes = run_study(Toy(6, at=tuple(f"t{n}=exception" for n in (3, 4, 5))), options)
    assert [outcome.result.failed for outcome in outcomes] == [False] * 3 + [True] * 3


def test_results_from_elsewhere_are_copied_into_the_folder(
    alone: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As where two sites do not see each other's files. A failure gives way to a success, never the reverse."""
    shutil.copytree(alone, tmp_path / "jobs" / "site")
    joined(tmp_path)
    require_equal(tmp_path, alone)
    shutil.copytree(alone, tmp_path / "jobs" / "twice")
    history = read_study(tmp_path)
    status = status_of(tmp_path, history, False)
    assert [job.trials for job in status.jobs if job.trials] == [N_TRIALS] * 2
    studied(tmp_path / "good", 3)
    studied(tmp_path / "bad", 3, at=("t1=nan",))
    for first, other in (("good", "bad"), ("bad", "good")):
        both = tmp_path / f"{first}-first"
        shutil.copytree(tmp_path / first, both)
        shutil.copytree(tmp_path / other, both / "jobs" / "other")
        history = read_study(both)
        assert not any(result.failed for result in history.results.values())
    shutil.copytree(alone, tmp_path / "good" / "jobs" / "wrong")
    assert len(read_study(tmp_path / "good").results) == 3
    assert "wrong holds a study with n = 12, " in caplog.text and "its results are not used" in caplog.text


def test_what_cannot_join_is_refused(tmp_path: Path) -> None:
    for option in ("restart", "retry_failed", "adapt"):
        with pytest.raises(UsageError, match=f"join and {option} exclude each other"):
            RunOptions(join=True, **{option: True})
    space = {"x": Float(0, 1)}
    with pytest.raises(UsageError, match="give results="):
        search(len, space, n_trials=2, minimize="loss", join=True)
    assert not (tmp_path / "r").exists()
    options = RunOptions(join=True, workers=0, results=tmp_path, quiet=True)
    assert len(run_study(Toy(3), options)) == 3
    with pytest.raises(UsageError, match="holds a study with n = 3, not 4"):
        run_study(Toy(4), options)


SHIFT = [0]


@dataclass(frozen=True)
class Shifted(Experiment):
    """Its points depend on what is no setting, such as a clock."""

    def searches(self) -> Any:
        yield one_round(Trial(f"t{n}", {"x": n + SHIFT[0]}) for n in range(9))

    def objective(self, worker: Any) -> Any:
        return per_trial(lambda trial: {"loss": float(trial.params["x"])})


def test_jobs_that_ask_for_other_trials_of_one_key_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first job hears of a result of the other's."""
    experiment, header = Shifted(), {"kind": "experiment", "settings": {"experiment": "Shifted"}}
    history = join(tmp_path, header, "first").history
    how: dict[str, Any] = dict(timeout=0.0, n_slots=1, cost=lambda trial: 1.0)
    first = JoinedStudy(experiment.searches(), history, folder=tmp_path, job="first", **how)
    first.start()
    monkeypatch.setattr(sys.modules[__name__], "SHIFT", [1])
    run_study(experiment, RunOptions(join=True, workers=0, results=tmp_path, quiet=True))
    with pytest.raises(StudyError, match="job .* has evaluated trial t0 .* jobs that join must have the same results"):
        first._look()
    first.close()


def test_claims_have_one_order(tmp_path: Path) -> None:
    """Eight jobs claim at the same time whatever nobody has: each batch has one owner, and all know the same ones."""
    names = [f"b{n}" for n in range(300)]
    found: dict[int, Claims] = {}

    def job(number: int) -> None:
        claims, rng = Claims(tmp_path, str(number)), random.Random(number)
        while free := [name for name in names if name not in claims.owner]:
            if not claims.take(rng.sample(free, min(len(free), rng.randint(1, 5)))):
                claims.read()
        found[number] = claims

    threads = [threading.Thread(target=job, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = sorted((tmp_path / "jobs/claims").iterdir())
    assert [path.name for path in files] == [f"{n:08}" for n in range(1, len(files) + 1)]
    claimed = Counter(name for path in files for name in json.loads(path.read_text())["batches"])
    assert claimed == Counter(names)
    for claims in found.values():
        claims.read()
        assert claims.owner == found[0].owner


def test_a_line_that_is_being_written_is_heard_of_once_it_is_whole(tmp_path: Path) -> None:
    line = written_trial(*outcome(0))
    (tmp_path / JOURNAL).write_bytes(line[:20])
    other = Follower(tmp_path)
    assert not list(other.read())
    with open(tmp_path / JOURNAL, "ab") as file:
        file.write(line[20:])
    assert [heard.key for heard in other.read()] == ["a/0"]


def test_a_claim_that_was_lost_is_nobodys(tmp_path: Path) -> None:
    """The file server has lost what was in it: the next one counts."""
    claims, other = Claims(tmp_path, "a"), Claims(tmp_path, "b")
    assert claims.take(["x"]) and not other.take(["x"])
    (tmp_path / "jobs/claims/00000001").write_bytes(b"")
    assert other.read() == [] and other.take(["x"])
    assert claims.read() == ["x"] and claims.owner == {"x": "b"}
    assert Claim("b", ["x"]) == Claim(**json.loads((tmp_path / "jobs/claims/00000002").read_text()))


def test_jobs_are_not_kept_behind_a_link(alone: Path, tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    study = tmp_path / "r"
    shutil.copytree(alone, study)
    (study / "jobs").symlink_to(elsewhere)
    with pytest.raises(UsageError, match="put the folder itself there"):
        joined(study)
    assert not list(elsewhere.iterdir())


def test_only_silent_jobs_are_gone(tmp_path: Path) -> None:
    """By one's own heartbeats, whatever the clocks say: a job that has slept itself blames nobody."""
    mine, other = Lives(tmp_path, "mine", 0.5), Lives(tmp_path, "other", 0.5)
    alive, own = tmp_path / "jobs/other/alive", tmp_path / "jobs/mine/alive"
    try:
        for shift in (-86400, 86400):  # the clock of the file server was set
            os.utime(alive, (0, time.time() + shift))
            assert mine.gone(["other", "mine"]) == set()
        own.unlink()
        assert wait_until(own.exists) and mine.gone(["other", "mine"]) == set()
        other.close()
        os.utime(alive, (0, time.time() + 86400))
        assert mine.gone(["other"]) == set()
        assert wait_until(lambda: mine.gone(["other"]) == {"other"}, 10)
        os.utime(alive)
        assert mine.gone(["other"]) == set()
        assert wait_until(lambda: mine.gone(["never began"]) == {"never began"}, 10)
    finally:
        mine.close()
        other.close()


def test_a_window_is_that_of_the_study_or_refused(tmp_path: Path) -> None:
    def job(**given: Any) -> int:
        objective = lambda trial: {"loss": trial.params["x"]}  # noqa: E731
        options = RunOptions(join=True, heartbeat_timeout=1.0)
        how: dict[str, Any] = dict(strategy="tpe", n_trials=9, minimize="loss", workers=0, results=tmp_path / "r")
        return len(search(objective, {"x": Float(0, 1)}, options=options, **how, **given))

    assert job(window=4) == 9 and job(window=4) == 9 and job() == 9
    for given in ({"window": 5}, {"window": 32}):
        with pytest.raises(UsageError, match="holds a study with window = "):
            job(**given)


def test_table_and_page_are_of_all_trials_and_of_jobs_that_have_enough(tmp_path: Path) -> None:
    def one(trial: Any) -> float:
        time.sleep(0.3 if trial.number < 10 else 0)
        return float(trial.params["x"])

    def rows(n: int, **how: Any) -> int:
        how = {"strategy": "random", "minimize": "loss", "n_trials": n, "join": True, "workers": 0, **how}
        search(one, {"x": Float(0, 1)}, results=tmp_path / "r", **how)
        return len((tmp_path / "r/trials.csv").read_text().splitlines()) - 1

    assert rows(10, callbacks=[lambda study, trial: len(study) >= 2]) == 2
    page = tmp_path / "r/report.html"
    assert (rows(10), rows(20)) == (10, 20) and "complete" in page.read_text()
    page.unlink()
    page.symlink_to(tmp_path / "r/trials.csv")
    (tmp_path / "r/trials.csv").unlink()
    assert rows(20) == 20 and not page.is_symlink()
