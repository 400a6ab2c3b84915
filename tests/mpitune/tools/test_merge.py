"""Studies run in shares, and their journals joined."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from mpitune import cli
from mpitune.engine.study import Shard, Study
from mpitune.errors import Exit, UsageError
from mpitune.storage.history import read_journal
from mpitune.tools import status
from mpitune.tools.merge import main, merge
from mpitune.trial import Rounds, Trial
from tests.helpers import journal_lines, studied, table_without_run
from tests.toys import Toy

STUDY = ("6", "--courses", "3", "--rounds", "2", "--batch-trials", "2", "--array-size", "4")
ONE = ("--gpu", "none", "--workers", "1")


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "a/b", "1.0/2"])
def test_a_share_is_k_of_n(text: str) -> None:
    with pytest.raises(ValueError, match="K/N"):
        Shard.parse(text)
    assert Shard.parse("2/3") == Shard(2, 3)


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_shares_have_every_batch_once_and_about_as_many(of: int) -> None:
    def search(name: str) -> Rounds:
        yield [(Trial(f"{name}{i}", {}), Trial(f"{name}{i}b", {})) for i in range(5)]

    shares = [Study([search(name) for name in "abcd"], {}, {}, shard=Shard(k + 1, of)).start() for k in range(of)]
    everything = Study([search(name) for name in "abcd"], {}, {}).start()
    assert sorted(batch[0].key for share in shares for batch in share) == sorted(b[0].key for b in everything)
    assert max(map(len, shares)) - min(map(len, shares)) <= 2


def test_shares_joined_are_the_study_that_one_job_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: Any) -> str:
        """What the program prints; it runs in this process, its worker in one of its own."""
        capsys.readouterr()
        assert cli.main(Toy, list(map(str, (*STUDY, *ONE, "--results", *arguments)))) == Exit.DONE
        return capsys.readouterr().out

    whole, joined = tmp_path / "whole", tmp_path / "joined"
    run(whole)
    shares = []
    for k in (1, 2, 3):
        share = tmp_path / f"share-{k}"
        done = run(share, "--shard", f"{k}/3")
        assert f"shard {k}/3 is done" in done and not (share / "trials.csv").exists()
        assert len(journal_lines(share)) == 6  # a third of the first rounds; no round was complete
        assert status.main([str(share)]) == Exit.STOPPED
        shares.append(share)
    again = run(share, "--shard", "3/3")
    assert "shard 3/3 is done" in again and len(journal_lines(share)) == 6
    assert main([*map(str, shares), "--into", str(joined)]) == Exit.DONE
    assert len(journal_lines(joined)) == 18
    assert status.main([str(joined)]) == Exit.STOPPED
    # What is left, the second rounds, may be shared again.
    other = tmp_path / "other"
    shutil.copytree(joined, other)
    run(joined, "--shard", "1/2")
    assert 18 < len(journal_lines(joined)) < 36
    merge([other, joined], joined)
    run(joined)
    assert len(journal_lines(joined)) == 36
    assert table_without_run(joined / "trials.csv") == table_without_run(whole / "trials.csv")
    history, first = read_journal(joined), read_journal(whole)
    assert history is not None and first is not None
    for key, result in first.results.items():
        assert list(history.results[key].arrays["array"]) == list(result.arrays["array"])


def test_a_failure_gives_way_to_a_success_and_never_the_reverse(tmp_path: Path) -> None:
    good, bad, into = tmp_path / "good", tmp_path / "bad", tmp_path / "into"
    studied(good, 3)
    studied(bad, 3, at=("t1=nan",))
    assert [line["key"] for line in journal_lines(bad) if line["error"]] == ["t1"]
    merge([good, bad], into)
    assert not any(line["error"] for line in journal_lines(into))
    merge([bad], tmp_path / "later")
    merge([good], tmp_path / "later")
    history = read_journal(tmp_path / "later")
    assert history is not None and not any(result.failed for result in history.results.values())
    before = (into / "journal.jsonl").read_bytes()
    merge([good, bad, into], into)
    assert (into / "journal.jsonl").read_bytes() == before


def test_studies_of_other_settings_are_not_joined(tmp_path: Path, capsys: Any) -> None:
    for n in (3, 4):
        studied(tmp_path / str(n), n)
    capsys.readouterr()
    with pytest.raises(UsageError, match="n = 4"):
        merge([tmp_path / "3", tmp_path / "4"], tmp_path / "into")
    assert not (tmp_path / "into").exists()
    with pytest.raises(UsageError, match="n = 4"):
        merge([tmp_path / "3"], tmp_path / "4")
    for arguments in ((tmp_path / "3",), (tmp_path / "no", "--into", tmp_path / "into"), ()):
        assert main(list(map(str, arguments))) == Exit.USAGE
        said = capsys.readouterr()
        assert said.err.count("\n") == 1 and said.out == ""
