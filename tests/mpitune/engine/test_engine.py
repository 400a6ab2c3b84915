"""The engine from outside: real processes, real mpirun, real deaths."""

import resource
from pathlib import Path
from typing import Any

from mpitune.errors import Exit
from tests.helpers import TOYS, journal_lines, table_without_run

# What happens to a trial, and what the table of failures must say.
FAULTS = {
    "sigkill": "killed by SIGKILL",
    "segfault": "killed by SIGSEGV",
    "c_exit": "ended with exit code 7",
    "out_of_memory": "Cannot allocate memory",
    "exception": "ValueError: a point outside the domain",
    "unpicklable_exception": "Unpicklable: with a cause that must survive",
    "hang": "hung: no result within 5 s",
    "last_words": "the last thing I saw was a bear\nended with exit code 3",
    "nan": "the objective returned NaN as square",
    "unpicklable_result": "TypeError: float() argument",
    "wrong_key": "'elsewhere', which is not an open trial",
    "no_result": "returned nothing for 't47'",
    "dies_sending": "killed by SIGALRM",
}
HARMLESS = ("flood", "dies_idle")  # to the trial: the one is only loud, in the other the worker dies afterwards
# Each strikes the last trial of a batch of four, so that no slot sees two in a row.
STRUCK = {f"t{4 * number + 3}": fault for number, fault in enumerate((*FAULTS, *HARMLESS))}
DISASTERS = (
    *TOYS, 4 * len(STRUCK), "--batch-trials", 4, "--trial-timeout", 5, "--gpu", "none", "--workers", 2,
    "--at", *(f"{key}={fault}" for key, fault in STRUCK.items()),
)  # fmt: skip


def test_one_study_of_all_disasters(program: Any, tmp_path: Path) -> None:
    """Every failing trial is retried, then recorded with its cause; the others of its batch and of the study go on."""
    done = program(*DISASTERS, "--results", tmp_path / "r", status=Exit.FAILED_TRIALS)
    lines = {line["key"]: line for line in journal_lines(tmp_path / "r")}
    failing = {key: fault for key, fault in STRUCK.items() if fault in FAULTS}
    assert sorted(lines) == sorted(f"t{i}" for i in range(4 * len(STRUCK)))
    assert len(journal_lines(tmp_path / "r")) == len(lines)
    assert {key for key, line in lines.items() if line["error"]} == set(failing)
    rows = dict(row.split(",", 1) for row in (tmp_path / "r" / "trials.csv").read_text().splitlines())
    for key, fault in failing.items():  # the worker of dies_idle may die in another trial's second attempt
        assert FAULTS[fault] in lines[key]["error"] or FAULTS["dies_sending"] in lines[key]["error"], fault
        assert lines[key]["attempt"] == 2 and lines[key]["values"] == {}, fault
        assert f"failed: trial {key}" in done.stderr and "nan" in rows[key], fault
    # The same command finds the study complete, and says again what failed.
    again = program(*DISASTERS, "--results", tmp_path / "r", status=Exit.FAILED_TRIALS)
    assert all(f"failed: trial {key}" in again.stderr for key in failing)
    assert len(journal_lines(tmp_path / "r")) == len(lines)
    # Disasters that strike once leave no trace but the attempt: one kills, one is raised, one is returned.
    quiet, once = DISASTERS[: DISASTERS.index("--at")], ("t3=sigkill", "t19=exception", "t35=nan")
    (tmp_path / "marks").mkdir()
    program(*quiet, "--at", *once, "--marks", tmp_path / "marks", "--results", tmp_path / "once")
    attempts = {line["key"]: line["attempt"] for line in journal_lines(tmp_path / "once")}
    assert {key for key, attempt in attempts.items() if attempt == 2} == {word.split("=")[0] for word in once}
    # Failed trials are evaluated again when that is asked for.
    program(*quiet, "--results", tmp_path / "r", "--retry-failed")
    assert table_without_run(tmp_path / "r" / "trials.csv") == table_without_run(tmp_path / "once" / "trials.csv")


def test_a_limit_of_files_is_one_line_that_names_it(program: Any, tmp_path: Path) -> None:
    limit: Any = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))}
    options = ("--gpu", "none", "--workers", 40, "--results", tmp_path)
    done = program(*TOYS, 99, *options, status=Exit.ERROR, **limit)
    assert "Traceback" not in done.stderr and "Too many open files (ulimit -u, ulimit -n): give" in done.stderr
