"""Lines of a journal: kept as text, parsed when they are looked at, refused when they are damaged."""

from contextlib import closing
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpitune.engine.study import Study
from mpitune.errors import UsageError
from mpitune.storage.history import NAME, read_journal, read_study
from mpitune.storage.journal import Journal, repair
from mpitune.storage.lines import UNREADABLE, TrialLines, parsed, with_checksum
from mpitune.storage.stored import StoredResults, StoredTrials, known_params
from mpitune.trial import Result, Search, Trial, Used, seed_of
from tests.helpers import HEADER, outcome


def test_lines_that_are_json_only_together_are_damaged(tmp_path: Path) -> None:
    """Lines are read many at a time; each must be an object of its own all the same."""
    journal = Journal(tmp_path, HEADER)
    journal.append([outcome(1), outcome(2)])
    journal.close()
    with open(tmp_path / NAME, "ab") as file:
        for line in (b'{"key":[{}', b'{"a":1}]}', b'{"a":1},{"b":2}'):
            file.write(with_checksum(line) + b"\n")
    with pytest.raises(UsageError, match=r"line 4.* is damaged: .* \(2 more are\)"):
        read_journal(tmp_path)


ORDINARY = [
    outcome(0),
    outcome(1, values={"loss": float("inf"), "other": -float("inf"), "third@12": 1e-7, "n": 2e16}),
    outcome(2, values={}, error='Traceback\n  File "a.py"\tin C:\\x\nValueError: x', attempt=2),
    outcome(3, arrays={"p": np.zeros(2), "q": np.zeros(1)}),
    outcome(4, ended=1.7e9, used=Used(0.5, 1 << 30, None, 1 << 33)),
    outcome(5, used=Used(0.5, 1 << 30, None, None, 1.25)),
    (Trial("t000007/3", {"lr": -1.5e-5, "n": 10**20, "act": "re lu", "on": True, "off": False}), Result("t000007/3")),
]


def trial_lines(folder: Path) -> list[bytes]:
    """The lines that a journal has of ordinary trials."""
    with closing(Journal(folder, HEADER)) as journal:
        journal.append(ORDINARY)
    return (folder / NAME).read_bytes().splitlines()[1:]


def test_a_line_as_it_is_written_is_kept_without_parsing_it(tmp_path: Path) -> None:
    lines = TrialLines(tmp_path)
    for line, (trial, result) in zip(trial_lines(tmp_path), ORDINARY, strict=True):
        assert not list(lines.take([line])), line
        assert StoredTrials(lines)[trial.key] == trial and lines.result(trial.key).values == result.values
        digit = b"1" if line[-3:-2] == b"0" else b"0"
        for wrong in (line[:-3] + digit + b'"}', line.replace(b'"attempt":', b'"attempt":1'), line[1:], line + b" "):
            assert list(TrialLines(tmp_path).take([wrong])) == [0], wrong


def test_a_text_that_is_not_utf8_is_kept_as_it_is(tmp_path: Path) -> None:
    """As `os.listdir` gives a file's name: in an error, a parameter, a key and the name of a value."""
    half = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    failed = outcome(0, values={}, error=f"ValueError: {half}")
    named = Trial(half, {"file": half}), replace(outcome(1)[1], key=half, values={half: 1.0})
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.append([failed, named, outcome(2, arrays={"a": np.zeros(1)})])
        journal.append([(Trial("é" + half, {}), replace(outcome(2, arrays={half: np.zeros(2)})[1], key="é" + half))])
    journal = Journal(tmp_path, HEADER)
    journal.close()
    history = read_study(tmp_path)
    assert history.results["a/0"].error == f"ValueError: {half}" and repair(tmp_path)[0] == []
    assert history.trials[half].params == {"file": half} and history.results[half].values == {half: 1.0}
    assert history.results["é" + half].arrays[half].shape == (2,)
    assert list(journal.history.trials) == list(history.trials)
    assert seed_of(0, half).spawn_key != seed_of(0, "caf.png").spawn_key


@pytest.mark.parametrize("key", ["a\\nb", "\\u00e9", "a" * 201, "", 'a","x":"b', "\u00e9"])
def test_a_line_with_a_key_that_is_not_plain_is_parsed(tmp_path: Path, key: str) -> None:
    line = trial_lines(tmp_path)[0][:-18].replace(b'"a/0"', b'"%s"' % key.encode())
    assert list(TrialLines(tmp_path).take([with_checksum(line + b"}")])) == [0]


WRONG = '1. 01 .5 +1 1e 1e+ - 1.5.2 --1 inf [] True "a 1,'.split()


@pytest.mark.parametrize("wrong", [*WRONG, "", '{"b":1}', "1]},{"])
@pytest.mark.parametrize("place", [b'"x":', b'"loss":', b'"seconds":', b'"attempt":'])
def test_a_line_with_a_right_checksum_that_is_no_trial_is_told_and_repaired(
    tmp_path: Path, wrong: str, place: bytes
) -> None:
    """Nobody but a program that calculates checksums writes such a line: it is found when it is looked at."""
    trial_lines(tmp_path)
    lines = (tmp_path / NAME).read_bytes().splitlines()
    content = lines[2][:-18]
    at = content.index(place) + len(place)
    end = next(i for i in range(at, len(content)) if content[i : i + 1] in b",}")
    lines[2] = with_checksum(content[:at] + wrong.encode() + content[end:] + b"}")
    (tmp_path / NAME).write_bytes(b"\n".join(lines) + b"\n")
    history = read_journal(tmp_path)
    assert history is not None and len(history.results) == len(ORDINARY)
    with pytest.raises(UsageError, match="trial a/1 is damaged.*--repair"):
        read_study(tmp_path)
    look = (lambda: history.trials["a/1"]) if place == b'"x":' else (lambda: history.results["a/1"])
    with pytest.raises(UsageError, match="trial a/1 is damaged.*--repair"):
        look()
    assert [damage.number for damage in repair(tmp_path)[0]] == [3]
    assert len(read_study(tmp_path).results) == len(ORDINARY) - 1


def changed_line(folder: Path, data: st.DataObject) -> bytes:
    """An ordinary line with any few bytes changed, or a piece of one in another, and a right checksum."""
    if not (folder / NAME).exists():
        trial_lines(folder)
    sound = (folder / NAME).read_bytes().splitlines()[1:]
    line = bytearray(data.draw(st.sampled_from(sound))[:-18])
    for _ in range(data.draw(st.integers(0, 3))):
        other = data.draw(st.sampled_from(sound))
        at, start = data.draw(st.integers(0, len(line))), data.draw(st.integers(0, len(other)))
        put = data.draw(
            st.sampled_from([other[start : start + 3], b"1", b"e9", b".", b"-", b'"', b"\\", b"\xff", b"0"])
        )
        line[at : at + data.draw(st.integers(0, 3))] = put
    return with_checksum(bytes(line) + b"}")


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lines_are_taken_together_as_one_by_one(tmp_path: Path, data: st.DataObject) -> None:
    lines = [changed_line(tmp_path, data) for _ in range(data.draw(st.integers(1, 3)))]
    if data.draw(st.booleans()):
        lines[-1] = lines[-1][:-3] + b'x"}'
    together, one_by_one = TrialLines(tmp_path), TrialLines(tmp_path)
    assert [*together.take(lines), len(lines)] == list(one_by_one.take([*lines, b"{}"]))
    assert together.texts == one_by_one.texts


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_taken_without_parsing_says_the_same_when_it_is_parsed(tmp_path: Path, data: st.DataObject) -> None:
    whole = changed_line(tmp_path, data)
    taken, other_way = TrialLines(tmp_path), TrialLines(tmp_path)
    if not list(taken.take([whole])):
        ((key, text),) = taken.texts.items()
        assert text != whole
        try:
            record = parsed(whole, True)
            if not isinstance(record, dict) or record.get("key") != key:
                raise ValueError("it says the key twice")
            other_way.take_parsed(record, whole)
        except UNREADABLE:
            with pytest.raises(UsageError, match="is damaged"):
                taken.all()
            return
        assert other_way.texts == {key: whole}
        assert StoredTrials(taken)[key] == StoredTrials(other_way)[key] == taken.all()[0][key]
        results = [plain(taken.result(key)), plain(other_way.result(key)), plain(taken.all()[1][key])]
        assert results[0] == results[1] == results[2]


def plain(result: Result) -> Result:
    """A result that can be compared: with the names of its arrays."""
    return replace(result, arrays=dict.fromkeys(result.arrays))


def test_results_of_lines_are_a_mapping_and_a_copy_has_its_own_changes(tmp_path: Path) -> None:
    trial_lines(tmp_path)
    history = read_journal(tmp_path)
    assert history is not None
    results, (_, new) = history.results, outcome(9)
    mine = copy(results)
    del mine["a/1"]
    mine["a/9"], mine["a/2"] = new, replace(new, key="a/2")
    assert list(mine) == ["a/0", "a/2", "a/3", "a/4", "a/5", "t000007/3", "a/9"] and len(mine) == 7
    assert "a/1" not in mine and mine["a/9"] is new and mine["a/2"].error is None
    for key in ("a/1", "a/8"):
        with pytest.raises(KeyError):
            mine[key]
        with pytest.raises(KeyError):
            del mine[key]
    assert len(results) == 7 and results["a/1"].values["loss"] == float("inf") and results["a/2"].failed
    assert list(history.trials) == list(results) and "a/8" not in history.trials and len(history.trials) == 7


def test_a_study_that_goes_on_looks_at_no_result_it_does_not_need(tmp_path: Path) -> None:
    """Of a million known trials it asks for the parameters alone, as long as one of the round is open."""
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.append([outcome(number) for number in range(4)])
    history = read_journal(tmp_path)
    assert history is not None and isinstance(history.results, StoredResults)
    looked: list[str] = []
    result = history.results.lines.result
    history.results.lines.result = lambda key: looked.append(key) or result(key)  # type: ignore[method-assign, func-returns-value]

    def search() -> Search:
        found = yield [(outcome(number)[0],) for number in range(5)]
        assert [one.key for one in found] == [f"a/{number}" for number in range(5)]

    study = Study([search()], history.trials, history.results)
    ((left,),) = study.start()
    assert left.key == "a/4" and study.n_done == 4 and not looked
    study.record(outcome(4)[1])
    assert study.finished and looked == ["a/0", "a/1", "a/2", "a/3"]


def test_parameters_of_known_trials_are_parsed_together(tmp_path: Path) -> None:
    """Of lines of any form, in the order asked."""
    odd = Trial("a/ü", {"x": 10**30, "text": 'é ","values":{'})
    with closing(Journal(tmp_path, HEADER)) as journal:
        journal.append([*ORDINARY, (odd, Result(odd.key))])
    history = read_journal(tmp_path)
    assert history is not None
    trials = [odd, *(trial for trial, _ in reversed(ORDINARY))]
    keys = ["b", *(trial.key for trial in trials), "c"]
    assert list(known_params(history.trials, keys)) == [None, *(trial.params for trial in trials), None]
    assert list(known_params({odd.key: odd}, keys)) == [None, odd.params, *[None] * (len(keys) - 2)]
