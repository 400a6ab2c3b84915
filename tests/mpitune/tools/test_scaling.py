"""Speed-up and efficiency from the journals of real runs."""

import csv
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mpitune.errors import Exit
from mpitune.storage.history import History
from mpitune.storage.journal import Journal
from mpitune.tools.scaling import RunTiming, compare, main, timing_of
from tests.helpers import TOYS

SLOTS = ["node1/0/0/cuda:0", "node2/1/0/cuda:0"]
STUDY = (*TOYS, "12", "--seconds", "0.05", "--gpu", "none")


def ends(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [line["end"]["seconds"] for line in lines if "end" in line]


@pytest.mark.slow
def test_a_table_and_a_figure_of_real_runs(program: Any, tmp_path: Path, capsys: Any) -> None:
    folders = {n: tmp_path / f"on-{n}" for n in (1, 4)}
    for n, folder in folders.items():
        program(*STUDY, "--workers", n, "--results", folder)
    program(*STUDY, "--workers", "2", "--results", folders[1])  # reports again, and is not counted
    assert main([str(folders[4]), str(folders[1]), "--into", str(tmp_path / "out")]) == Exit.DONE
    rows = list(csv.DictReader((tmp_path / "out" / "scaling.csv").open()))
    assert [(row["slots"], row["nodes"], row["study"]) for row in rows] == [("1", "1", "on-1"), ("4", "1", "on-4")]
    one, four = ends(folders[1])[0], ends(folders[4])[0]
    assert float(rows[0]["speed_up"]) == 1 and float(rows[1]["speed_up"]) == pytest.approx(one / four, rel=1e-3)
    assert float(rows[1]["efficiency"]) == pytest.approx(one / four / 4, rel=1e-3)
    assert 0 < float(rows[1]["busy"]) <= 1
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"scaling.csv", "scaling.svg", "scaling.png"}


def test_what_cannot_be_compared_is_refused(tmp_path: Path, capsys: Any) -> None:
    for name, seed, complete in (("a", 0, True), ("b", 1, True), ("c", 0, False)):
        with closing(Journal(tmp_path / name, {"settings": {"experiment": "toys", "seed": seed}})) as journal:
            journal.note(run={"slots": SLOTS})
            journal.note(end={"complete": complete, "seconds": 1.0})
    for name, text in {"b": "seed = 1", "c": "not complete: run the same command", "d": "holds no study"}.items():
        assert main([str(tmp_path / "a"), str(tmp_path / name), "--into", str(tmp_path / "out")]) == Exit.USAGE
        said = capsys.readouterr()
        assert text in said.err and said.err.count("\n") == 1 and said.out == ""
    assert not (tmp_path / "out").exists()


def test_the_runs_of_a_study_add_up() -> None:
    """A study that its job's time limit cut in two, on other nodes the second time."""
    history = History(
        {}, runs=[{"slots": SLOTS}, {"slots": [slot.replace("node1", "node3") for slot in SLOTS]}],
        ends=[{"complete": False, "seconds": 10.0}, {"complete": True, "seconds": 5.0}],
    )  # fmt: skip
    assert timing_of(Path("r/two"), history) == RunTiming("two", 2, 2, 15.0, 0)
    history.runs[1]["slots"] = SLOTS[:1]
    with pytest.raises(Exception, match="different numbers of slots"):
        timing_of(Path("r"), history)
    del history.ends[0]
    with pytest.raises(Exception, match="was killed"):
        timing_of(Path("r"), history)


BY_NAME = {"d": 50, "a": 90, "b": 60}


def test_the_reference_is_the_median_on_the_fewest_slots() -> None:
    found = [RunTiming("c", 8, 4, 30.0, 120.0), *(RunTiming(name, 2, 1, float(s), 2.0) for name, s in BY_NAME.items())]
    points = compare(found)
    assert [point.measured.name for point in points] == ["a", "b", "d", "c"]
    assert [point.speed_up for point in points] == [120 / 90, 120 / 60, 120 / 50, 120 / 30]
    assert points[3].efficiency == 0.5 and points[3].busy == 0.5


ROWS = """nodes,devices,device,batch,epochs,seconds,network,dataset
1,1,cpu,128,2,40,kubeflow,mnist
1,2,cpu,64,2,25,kubeflow,mnist
2,4,cpu,64,2,16,kubeflow,mnist
"""


def test_rows_of_trainings(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "ddp.csv").write_text(ROWS)
    assert main([str(tmp_path / "ddp.csv"), "--into", str(tmp_path / "out")]) == Exit.DONE
    said = capsys.readouterr().out.splitlines()
    assert said[2].split()[:2] == ["2", "1"] and "ddp.csv:3, batch 64" in said[2]
    rows = list(csv.DictReader((tmp_path / "out" / "scaling.csv").open()))
    assert [(row["slots"], row["nodes"], row["speed_up"]) for row in rows] == [
        ("1", "1", "1"), ("2", "1", "1.6"), ("4", "2", "2.5"),
    ]  # fmt: skip
    assert [row["efficiency"] for row in rows] == ["1", "0.8", "0.625"] and rows[0]["busy"] == ""
    assert (tmp_path / "out" / "scaling.png").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    {
        "1,2,cpu,64,3,25,kubeflow,mnist\n": "ddp.csv:5 has epochs = 3, ddp.csv:2 has 2: compare the same training",
        "1,0,cpu,64,2,25,kubeflow,mnist\n": "devices = 0",
        "1,2,cpu,64,2,nan,kubeflow,mnist\n": "seconds = nan",
        "1,two,cpu,64,2,25,kubeflow,mnist\n": "devices = two",
        "1,2\n": "seconds = None",
    }.items(),
)
def test_rows_that_cannot_be_compared(tmp_path: Path, capsys: Any, text: str, reason: str) -> None:
    (tmp_path / "ddp.csv").write_text(ROWS + text)
    assert main([str(tmp_path / "ddp.csv"), "--into", str(tmp_path / "out")]) == Exit.USAGE
    said = capsys.readouterr()
    assert reason in said.err and said.err.count("\n") == 1 and said.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("column", "values"), [("train_size", "60000 20000"), ("optimizer", "sgd adamw"), ("samples", "divided all")]
)
def test_only_equal_trainings_are_compared(tmp_path: Path, capsys: Any, column: str, values: str) -> None:
    one, two = values.split()
    head, first, *others = ROWS.splitlines()
    rows = [f"{head},{column}", f"{first},{one}", *(f"{row},{two}" for row in others)]
    (tmp_path / "ddp.csv").write_text("\n".join(rows))
    assert main([str(tmp_path / "ddp.csv"), "--into", str(tmp_path / "out")]) == Exit.USAGE
    assert f"ddp.csv:3 has {column} = {two}, ddp.csv:2 has {one}: compare the same" in capsys.readouterr().err


def test_resumed_trainings_are_left_out_and_what_an_old_row_does_not_say_is_not_compared(
    tmp_path: Path, capsys: Any
) -> None:
    head, first, second, *others = ROWS.splitlines()
    rows = [
        f"{head},train_size,trained_epochs",
        f"{first},,",
        f"{second},60000,1.5",
        *(f"{row},60000,2" for row in others),
    ]
    (tmp_path / "ddp.csv").write_text("\n".join(rows))
    assert main([str(tmp_path / "ddp.csv"), "--into", str(tmp_path / "out")]) == Exit.DONE
    assert "ddp.csv:3 is left out: that training was resumed" in capsys.readouterr().err
    table = list(csv.DictReader((tmp_path / "out" / "scaling.csv").open()))
    assert [row["slots"] for row in table] == ["1", "4"]


@pytest.mark.parametrize("text", ["", "nodes,devices\n1,1\n", "\xff\xfe", ROWS.splitlines()[0]])
def test_what_is_no_table_of_trainings_is_refused(tmp_path: Path, capsys: Any, text: str) -> None:
    (tmp_path / "ddp.csv").write_text(text, encoding="latin-1")
    assert main([str(tmp_path / "ddp.csv"), "--into", str(tmp_path / "out")]) == Exit.USAGE
    assert capsys.readouterr().err.count("\n") == 1
    assert main([str(tmp_path / "ddp.csv"), str(tmp_path), "--into", str(tmp_path / "out")]) == Exit.USAGE
    assert "tables only, or results folders only" in capsys.readouterr().err
