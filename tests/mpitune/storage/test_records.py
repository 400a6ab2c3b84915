"""Lines of a journal: checked when they are read, kept packed, and made a trial or result when they are looked at."""

from collections.abc import Iterator
from contextlib import closing
from copy import copy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from mpitune.engine.study import Study
from mpitune.storage import records
from mpitune.storage.history import NAME, read_journal, read_study
from mpitune.storage.journal import Journal
from mpitune.storage.records import UNPACKABLE, UNREADABLE, StoredResults, StoredTrials, not_known, pack, unpacked
from mpitune.trial import PLAIN, WHOLE, Ending, Result, Segment, Trial, seed_of
from tests.helpers import HEADER, outcome

ORDINARY = [
    outcome(0),
    outcome(1, values={"loss": float("inf"), "other": -float("inf"), "third": 1e-7, "n": 2e16}),
    outcome(2, values={}, error='Traceback\n  File "a.py"\tin C:\\x\nValueError: x', attempt=2),
    outcome(3, arrays={"p": np.zeros(2), "q": np.zeros(1)}),
    outcome(4, ended=1.7e9, peak_bytes=1 << 30),
    outcome(5, ended=1.7e9),
    (Trial("t000007/3", {"lr": -1.5e-5, "n": 10**20, "act": "re lu", "on": True, "off": False}), Result("t000007/3")),
    (
        Trial("t000008/1", {"@x": 1}, Segment(8, None, 1, False, 3, 9, "t000007/0", 2, ((5, 0.5),), {"a": [1, None]})),
        Result(
            "t000008/1",
            {"loss@1": 1.0},
            user_attrs={"@chosen": {"state": "pruned"}},
            ending=Ending("failed", "E", {4: {"loss": 0.5, "b": float("inf")}}, {"x": None}, (1.0, -2.5), {"k": [1]}),
        ),
    ),
]


def trial_lines(folder: Path) -> list[bytes]:
    """The lines that a journal has of ordinary trials."""
    with closing(Journal(folder, HEADER)) as journal:
        journal.append(ORDINARY)
    return (folder / NAME).read_bytes().splitlines()[1:]


def test_lines_have_the_fields_of_what_they_say_in_their_order() -> None:
    """They are read by place."""
    assert (
        records.SegmentLine.__struct_fields__ == Segment._fields and Segment(*astuple(records.SegmentLine())) == WHOLE
    )
    own = tuple(field.name for field in fields(Ending) if field.name != "fault")
    assert records.EndingLine.__struct_fields__ == own and records.EndingLine().ending == PLAIN


def test_a_text_that_is_not_utf8_is_kept_as_it_is(tmp_path: Path) -> None:
    """As `os.listdir` gives a file's name: in an error, a parameter, a key and the name of a value."""
    half = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    failed = outcome(0, values={}, error=f"ValueError: {half}")
    named = Trial(half, {"file": half}), replace(outcome(1)[1], key=half, values={half: 1.0})
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.append([failed, named, outcome(2, arrays={"a": np.zeros(1)})])
        journal.append([(Trial("é" + half, {}), replace(outcome(2, arrays={half: np.zeros(2)})[1], key="é" + half))])
    history = read_study(tmp_path)
    assert history.results["a/0"].error == f"ValueError: {half}" and history.damaged == []
    assert history.trials[half].params == {"file": half} and history.results[half].values == {half: 1.0}
    assert history.results["é" + half].arrays[half].shape == (2,)
    assert seed_of(0, half).spawn_key != seed_of(0, "caf.png").spawn_key


WRONG = '1. 01 .5 +1 1e 1e+ - 1.5.2 --1 inf [] "a 1, NaN'.split()


@pytest.mark.parametrize("wrong", [*WRONG, "", '{"b":1}', "1]},{", "1e999", "1" * 400])
@pytest.mark.parametrize("place", [b'"x":', b'"loss":', b'"seconds":', b'"attempt":'])
def test_a_line_with_a_right_checksum_that_is_no_trial_is_left_out(tmp_path: Path, wrong: str, place: bytes) -> None:
    trial_lines(tmp_path)
    lines = (tmp_path / NAME).read_bytes().splitlines()
    content = lines[2][:-18]
    at = content.index(place) + len(place)
    end = next(i for i in range(at, len(content)) if content[i : i + 1] in b",}")
    lines[2] = records.with_checksum(content[:at] + wrong.encode() + content[end:] + b"}")
    (tmp_path / NAME).write_bytes(b"\n".join(lines) + b"\n")
    if (wrong, place) == ("1e999", b'"loss":'):  # which is infinite, and so may a value be
        assert read_study(tmp_path).results["a/1"].values["loss"] == float("inf")
        return
    history = read_study(tmp_path)
    assert len(history.results) == len(ORDINARY) - 1 and "line 3 (trial a/1) is damaged" in history.damaged[0]


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_ways_to_read_a_line_say_the_same(tmp_path: Path, data: st.DataObject) -> None:
    """An ordinary line with any few bytes changed, or a piece of one in another: by both parsers of JSON."""
    if not (tmp_path / NAME).exists():
        trial_lines(tmp_path)
    sound = (tmp_path / NAME).read_bytes().splitlines()[1:]
    line = bytearray(data.draw(st.sampled_from(sound)))
    for _ in range(data.draw(st.integers(0, 3))):
        other = data.draw(st.sampled_from(sound))
        at, start = data.draw(st.integers(0, len(line))), data.draw(st.integers(0, len(other)))
        put = data.draw(st.sampled_from([other[start : start + 3], b"1", b"e9", b".", b"-", b'"', b"\\", b"0"]))
        line[at : at + data.draw(st.integers(0, 3))] = put
    try:
        record = records.read_trial(bytes(line))
    except msgspec.MsgspecError:
        return
    assert records.read_other(bytes(line)) == record
    try:
        packed = pack(msgspec.structs.astuple(record))
    except UNPACKABLE:
        return
    assert msgspec.structs.astuple(unpacked(packed)) == msgspec.structs.astuple(record)


def test_a_note_is_no_trial_whatever_it_says(tmp_path: Path) -> None:
    assert records.read_other(b'{"run":{},"crc":"00000000"}') == {"run": {}}
    for line in (b"[1]", b'{"key":3}', b'{"key":"a","params":{"x":1e999}}', b"\xff", b'{"key":NaN}'):
        with pytest.raises(UNREADABLE):
            records.read_other(line)


def test_results_are_a_mapping_and_a_copy_has_its_own_changes(tmp_path: Path) -> None:
    trial_lines(tmp_path)
    history = read_journal(tmp_path)
    assert history is not None
    results, (_, new) = history.results, outcome(9)
    mine = copy(results)
    del mine["a/1"]
    mine["a/9"], mine["a/2"] = new, replace(new, key="a/2")
    assert list(mine) == ["a/0", "a/2", "a/3", "a/4", "a/5", "t000007/3", "t000008/1", "a/9"] and len(mine) == 8
    assert "a/1" not in mine and mine["a/9"] is new and mine["a/2"].error is None
    for key in ("a/1", "a/8"):
        with pytest.raises(KeyError):
            mine[key]
        with pytest.raises(KeyError):
            del mine[key]
    assert len(results) == 8 and results["a/1"].values["loss"] == float("inf") and results["a/2"].failed
    assert list(history.trials) == list(results) and "a/8" not in history.trials and len(history.trials) == 8
    assert history.with_arrays == {"a/3"}


class Watched(StoredResults):
    """Results that say which of them were looked at."""

    looked: list[str] = []

    def __getitem__(self, key: str) -> Result:
        self.looked.append(key)
        return super().__getitem__(key)


def test_a_study_that_goes_on_looks_at_no_result_it_does_not_need(tmp_path: Path) -> None:
    """Of a million known trials it compares the parameters alone, as long as one of the round is open."""
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.append([outcome(number) for number in range(4)])
    history = read_journal(tmp_path)
    assert history is not None and isinstance(history.results, StoredResults)
    results = Watched(tmp_path, history.results.data)

    def search() -> Iterator[Any]:
        found = yield [(outcome(number)[0],) for number in range(5)]
        assert [one.key for one in found] == [f"a/{number}" for number in range(5)]

    study = Study([search()], history.trials, results)
    ((left,),) = study.start()
    assert left.key == "a/4" and study.n_done == 4 and not Watched.looked
    study.record(outcome(4)[1])
    assert study.finished and Watched.looked == ["a/0", "a/1", "a/2", "a/3", "a/4"]


def test_asked_trials_are_known_by_equal_parameters(tmp_path: Path) -> None:
    """Of lines of any form, and whatever the order, but not the types of numbers that are equal."""
    half = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    odd = [
        Trial("a/ü", {"x": 10**30, "text": 'é ","values":{'}),
        Trial("h", {"file": half}),
        Trial("n", {"x": 1, "y": 2}),
    ]
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.append([*ORDINARY, *((trial, Result(trial.key)) for trial in odd)])
    history = read_journal(tmp_path)
    assert history is not None and isinstance(history.trials, StoredTrials)
    trials = [*odd, *(trial for trial, _ in reversed(ORDINARY)), Trial("n", {"y": 2, "x": 1})]
    for known in (history.trials, dict(history.trials)):
        assert list(not_known(known, trials)) == []
        asked = [
            Trial("b", {}),
            *trials,
            Trial("n", {"x": 1, "y": 3}),
            Trial("n", {"x": True, "y": 2}),
            Trial("n", {"x": 1, "y": 2.0}),
            Trial("n", {"x": 10**30}),
            Trial("n", {"x": half}),
            Trial("n", {"x": 1, "y": 2}, Segment(fold=0)),
        ]
        assert [(trial.key, other) for trial, other in not_known(known, asked)] == [("b", None), *[("n", odd[-1])] * 6]
