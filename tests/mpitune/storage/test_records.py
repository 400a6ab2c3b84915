"""Lines of a journal, checked when they are read."""

from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import astuple

from mpitune.identity import label_of
from mpitune.storage import records
from mpitune.storage.history import JOURNAL, read_study
from mpitune.storage.journal import Journal
from mpitune.storage.records import UNREADABLE
from mpitune.storage.trials import records as records_of
from mpitune.trial import PLAIN, WHOLE, Ending, Outcome, Result, Segment, Trial, same_trial
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
    return (folder / JOURNAL).read_bytes().splitlines()[1:]


def test_lines_have_the_fields_of_what_they_say_in_their_order() -> None:
    """They are read by place."""
    assert (
        records.SegmentLine.__struct_fields__ == Segment._fields and Segment(*astuple(records.SegmentLine())) == WHOLE
    )
    own = tuple(field.name for field in fields(Ending) if field.name != "fault")
    assert records.EndingLine.__struct_fields__ == own and records.EndingLine().ending == PLAIN


def test_a_text_that_is_not_utf8_is_escaped_and_no_trial_has_one(tmp_path: Path) -> None:
    """As `os.listdir` gives a file's name: in an error, an attribute and the name of a value or an array."""
    half = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    failed = outcome(0, values={}, error=f"ValueError: {half}")
    named = replace(outcome(1)[1], values={half: 1.0}, user_attrs={"file": [half]}, arrays={half: np.zeros(2)})
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.append([failed, (outcome(1)[0], named)])
    history, escaped = read_study(tmp_path), "caf\\udce9.png"
    assert history.results["a/0"].error == f"ValueError: {escaped}" and history.damaged == []
    result = history.results["a/1"]
    assert result.values == {escaped: 1.0} and result.user_attrs == {"file": [escaped]}
    assert result.arrays[escaped].shape == (2,) and label_of(half) == f"'{escaped}'"
    for key, params in ((half, {}), ("a", {"file": half})):
        with pytest.raises(ValueError, match="UTF-8"):
            Trial(key, params)


WRONG = '1. 01 .5 +1 1e 1e+ - 1.5.2 --1 inf [] "a 1, NaN'.split()


@pytest.mark.parametrize("wrong", [*WRONG, "", '{"b":1}', "1]},{", "1e999", "1" * 400])
@pytest.mark.parametrize("place", [b'"x":', b'"loss":', b'"seconds":', b'"attempt":'])
def test_a_line_with_a_right_checksum_that_is_no_trial_is_left_out(tmp_path: Path, wrong: str, place: bytes) -> None:
    trial_lines(tmp_path)
    lines = (tmp_path / JOURNAL).read_bytes().splitlines()
    content = lines[2][:-18]
    at = content.index(place) + len(place)
    end = next(i for i in range(at, len(content)) if content[i : i + 1] in b",}")
    lines[2] = records.with_checksum(content[:at] + wrong.encode() + content[end:] + b"}")
    (tmp_path / JOURNAL).write_bytes(b"\n".join(lines) + b"\n")
    history = read_study(tmp_path)
    assert len(history.results) == len(ORDINARY) - 1 and "line 3 (trial a/1) is damaged" in history.damaged[0]


def test_a_note_is_no_trial_whatever_it_says(tmp_path: Path) -> None:
    assert records.read_line(b'{"run":{},"crc":"00000000"}') == {"run": {}}
    for line in (b"[1]", b'{"key":3}', b'{"key":"a","params":{"x":1e999}}', b"\xff", b'{"key":NaN}'):
        with pytest.raises(UNREADABLE):
            records.read_line(line)


def test_asked_trials_are_known_by_equal_parameters(tmp_path: Path) -> None:
    """Of lines of any form, and whatever the order, but not the types of numbers that are equal."""
    odd = [Trial("a/ü", {"x": 10**30, "text": 'é ","values":{'}), Trial("n", {"x": 1, "y": 0.0})]
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.append([*ORDINARY, *((trial, Result(trial.key)) for trial in odd)])
    known = read_study(tmp_path).trials
    asked = [*odd, *(trial for trial, _ in ORDINARY), Trial("n", {"y": 0.0, "x": 1})]
    assert all(same_trial(known[trial.key], trial) for trial in asked)
    for params in ({"x": 1, "y": 3.0}, {"x": True, "y": 0.0}, {"x": 1, "y": 0}, {"x": 1, "y": -0.0}, {"x": 1}):
        assert not same_trial(known["n"], Trial("n", params))
    assert not same_trial(known["n"], Trial("n", {"x": 1, "y": 0.0}, Segment(fold=0)))


def test_a_trial_is_what_its_last_stage_says_in_whatever_order_they_are_kept() -> None:
    """As where jobs that join have evaluated them."""
    stages = [
        Outcome(
            Trial(f"t000000/{n}", {}, Segment(0, stage=n, last=n == 2)),
            Result("", {"loss": 2.0 - n}, ending=Ending(steps={n: {"loss": 2.0 - n}})),
        )
        for n in (1, 2, 0)
    ]
    (record,) = records_of(stages)
    assert (record.state, record.values, list(record.steps)) == ("complete", {"loss": 0.0}, [0, 1, 2])
