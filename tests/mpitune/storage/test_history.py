"""Reading a journal: headers that cannot be trusted, notes between the trials, what is damaged."""

import json
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitune.errors import UsageError
from mpitune.storage.history import JOURNAL, History, read_journal, read_study
from mpitune.storage.journal import Journal, join
from mpitune.storage.lines import FORMAT, read_header
from tests.helpers import HEADER, journal_of, outcome

RUN, STOPPED, DONE = {"run": {"n_trials": 1}}, {"end": {"complete": False}}, {"end": {"complete": True, "seconds": 2.5}}


def history_of(folder: Path, *records: dict[str, Any]) -> History:
    """What a journal says that has these records after its header."""
    (folder / JOURNAL).write_bytes(journal_of([{"format": FORMAT, **HEADER}, *records]))
    history = read_journal(folder)
    assert history is not None
    return history


def test_a_run_lasts_until_its_end(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "new" / "below", HEADER)) as journal:
        assert not journal.history.open and not journal.history.complete and journal.history.size == 0
    history = history_of(tmp_path, RUN, DONE, RUN)
    assert history.open and not history.complete
    assert history.runs == [{"n_trials": 1, "seconds": 2.5}, {"n_trials": 1}] and len(history.ends) == 1
    history = history_of(tmp_path, RUN, RUN, DONE)  # the first was killed
    assert not history.open and history.complete
    assert [run.get("seconds") for run in history.runs] == [None, 2.5]
    assert history_of(tmp_path, DONE).ends == [DONE["end"]]
    first = {"end": {"complete": False, "seconds": 1.0}}  # a run that is told to stop says so, and again once it has
    history = history_of(tmp_path, RUN, first, RUN, STOPPED, DONE)
    assert history.ends == [first["end"], DONE["end"]] and history.complete
    assert history.runs == [{"n_trials": 1, "seconds": 1.0}, {"n_trials": 1, "seconds": 2.5}]


def test_a_change_of_code_is_told_until_a_start_of_each_job_has_none(tmp_path: Path) -> None:
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.append([outcome(0)])
        journal.note(run={"changed": ["f"], "began": 5e9})
    assert read_study(tmp_path).mixed == "results are of before a change of f"
    with closing(join(tmp_path, HEADER, "job")) as job:
        job.note(run={"changed": ["g"], "began": 1e9})
    assert read_study(tmp_path).mixed == "results are of before a change of f, g"
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.note(run={"began": 1.0})
    assert read_study(tmp_path).mixed == "results are of before a change of g"


def test_damaged_lines_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert history_of(tmp_path, RUN, {"x": 1}).damaged == ["line 3 is damaged: it has no key, run or end"]
    assert len(history_of(tmp_path, {"x": 1}, {"x": 2}).damaged) == 2
    assert caplog.messages == [
        f"{tmp_path / JOURNAL}, line 3 is damaged: it has no key, run or end: it is left out; the same command "
        "evaluates again what was lost"
    ]
    history_of(tmp_path, RUN)
    with open(tmp_path / JOURNAL, "ab") as file:
        file.write(json.dumps(DONE).encode() + b"\n")  # without a checksum, in a journal that has them
    history = read_journal(tmp_path)
    assert history is not None and "line 3 is damaged: its checksum" in history.damaged[0] and not history.complete


NO_HEADERS = [
    b"[1, 2, 3]",
    b"a line\n",
    json.dumps({"settings": HEADER["settings"], "format": FORMAT}).encode() + b"?",  # no newline, and none of ours
    json.dumps({"format": FORMAT, **HEADER}).encode() + b"\n",  # no checksum
]


@pytest.mark.parametrize("content", NO_HEADERS)
def test_a_file_without_a_header_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    (tmp_path / JOURNAL).write_bytes(content)
    for read in (read_journal, lambda folder: Journal(folder, HEADER)):
        with pytest.raises(UsageError, match=f"line 1 of .*{JOURNAL} is not a journal header"):
            read(tmp_path)
    assert (tmp_path / JOURNAL).read_bytes() == content


def test_a_header_is_read_alone(tmp_path: Path) -> None:
    assert read_header(tmp_path) is None
    header = history_of(tmp_path, RUN).header
    assert read_header(tmp_path) == header == {"format": FORMAT, **HEADER}
    (tmp_path / JOURNAL).write_bytes((tmp_path / JOURNAL).read_bytes()[:40])
    assert read_header(tmp_path) is None and read_journal(tmp_path) is None
    with pytest.raises(UsageError, match="holds no study"):
        read_study(tmp_path)
    (tmp_path / JOURNAL).write_bytes(b'{"format": 5, "sett')  # torn: no study yet
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.append([outcome(0)])
    assert list(read_study(tmp_path).results) == ["a/0"]


def test_an_array_or_an_error_of_another_kind_is_damage(tmp_path: Path) -> None:
    """In the file of arrays lies a text under the name of an array; an error is a number."""
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.append([outcome(0, arrays={"a": np.zeros(9)}), outcome(1), outcome(2)])
    with zipfile.ZipFile(tmp_path / "arrays" / "a%2F0.npz", "w") as file:
        file.writestr("a", "no array")
    lines = [json.loads(line) for line in (tmp_path / JOURNAL).read_text().splitlines()]
    lines[2]["error"] = 3
    (tmp_path / JOURNAL).write_bytes(journal_of(lines))
    history = read_study(tmp_path)
    assert "Expected `str | null`, got `int`" in history.damaged[0] and history.results.keys() == {"a/0", "a/2"}
    with pytest.raises(UsageError, match="its a is not an array"):
        history.results["a/0"].arrays["a"]


def test_a_trial_after_its_end_opens_a_study_and_a_damaged_success_is_no_failure(tmp_path: Path) -> None:
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.note(**DONE)
        journal.append([outcome(0), outcome(1, values={}, error="Killed")])
        journal.append([outcome(1)])
    history = read_study(tmp_path)
    assert not history.complete and not history.results["a/1"].failed
    content = (tmp_path / JOURNAL).read_bytes()
    (tmp_path / JOURNAL).write_bytes(content[:-30] + b"?" + content[-29:])
    history = read_study(tmp_path)
    assert history.damaged[0].startswith("line 5 (trial a/1) is damaged") and history.results.keys() == {"a/0"}
    assert history.trials.keys() == {"a/0"}
