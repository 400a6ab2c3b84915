"""The page as a file: what it says without JavaScript, what it holds, and that nobody can put anything into it."""

import base64
import gzip
import json
import re
import shutil
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mpitune.errors import Exit, StorageError
from mpitune.figures.panels import Fact, Section
from mpitune.options import RunOptions
from mpitune.port import Reporting
from mpitune.report.page import page
from mpitune.studies import run_study
from mpitune.tools.report import main
from mpitune.tools.status import main as status
from mpitune.trial import FAILED, PRUNED, Ending, Segment
from tests.helpers import studied
from tests.mpitune.report.journals import HOSTILE, header, hostile_section, many, read, trial_line, write
from tests.toys import Toy


class Seen(HTMLParser):
    """Elements, attributes and text of a page; `data` is what its data scripts hold."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.data: list[Any] = []
        self._script: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._script = (dict(attrs).get("class") or "code") if tag in ("script", "style") else None

    def handle_endtag(self, tag: str) -> None:
        self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is None:
            self.text += data.replace("\N{NO-BREAK SPACE}", " ")
        elif self._script == "data":
            self.data.append(json.loads(gzip.decompress(base64.b64decode(data)).decode().replace("1e999", "Infinity")))


def test_without_javascript_the_page_says_the_main_things(tmp_path: Path) -> None:
    lines = [
        trial_line("a/0", {"x": 1.5}, {"loss": 0.25}, segment=Segment(fold=0), begin=5, end=25),
        trial_line("a/1", {"x": 1.5}, {"loss": 0.35}, segment=Segment(fold=1), begin=25, end=60, attempt=2),
        trial_line(
            "b/0", {"x": 2.5}, {}, segment=Segment(fold=0), begin=5, end=9, slot=1, error="E\nValueError: too wide"
        ),
    ]
    history = write(tmp_path, lines)
    seen = Seen(page(read(history, [Section("", facts=[Fact("test error", "4.2 %")])])))
    for words in (
        "x = 1.5", "0.3", "mean of 2 folds", "test error", "4.2 %", "1 min 40 s", "ValueError: too wide",
        "1 × ValueError: too wide, the first b/0 at node1/0/1/gpu1", "toy.py 3", "3.11.7",
        "toy (toy.py)",
    ):  # fmt: skip
        assert words in seen.text, words
    assert {"table", "noscript", "details"} <= set(seen.tags)


def test_no_text_of_a_study_becomes_markup(tmp_path: Path) -> None:
    """What a stranger's journal holds is shown as it is: names, values, errors, places, settings, commands."""
    clean = [trial_line("a", {"x": 1, "y": "z"}, {"loss": 1.0}, begin=0, end=1)]
    key = HOSTILE[:190]
    bad = [
        trial_line(key, {HOSTILE: HOSTILE, "y": HOSTILE}, {"loss": 1.0, HOSTILE: 2.0}, begin=0, end=1),
        trial_line(key + "2", {HOSTILE: "b", "y": "c"}, {}, begin=0, end=1, error=HOSTILE),
    ]
    heading = header(**{HOSTILE: HOSTILE, "data_sha256": HOSTILE})
    bad_run = {"slots": [HOSTILE], "time": HOSTILE, "command": [HOSTILE], "versions": {HOSTILE: HOSTILE}}
    history = write(tmp_path / "bad", bad, heading=heading, note=bad_run)
    hostile = page(read(history, [hostile_section()]))
    seen, harmless = Seen(hostile), Seen(page(read(write(tmp_path / "good", clean))))
    assert seen.tags.count("script") == harmless.tags.count("script") == 3
    assert seen.tags.count("img") == 1 and not [name for name, _ in seen.attributes if name.startswith("on")]
    assert "window.hacked=1" in seen.text and "{{7*7}}" in seen.text
    assert HOSTILE in json.dumps(seen.data, ensure_ascii=False).replace('\\"', '"')
    assert "<script>window" not in hostile


def test_nothing_is_asked_of_a_network_and_only_our_scripts_may_run(tmp_path: Path) -> None:
    text = page(read(many(30, tmp_path)))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None and policy[1].startswith("default-src 'none'; img-src data:;")
    assert policy[1].count("'sha256-") == 2 and "'unsafe-inline'; script-src" in policy[1]
    seen = Seen(text)
    links = [value or "" for name, value in seen.attributes if name in ("src", "href", "action")]
    assert links and all(link.startswith("#") for link in links)


def test_the_data_hold_every_trial_as_it_is(tmp_path: Path) -> None:
    lines = [
        trial_line("a", {"x": 0.1234564, "act": "relu"}, {"loss": float("inf")}, begin=0, end=1),
        trial_line("b", {"x": 12345678, "act": "gelu"}, {}, begin=1, end=2, error="Traceback\nValueError: x"),
    ]
    (data,) = Seen(page(read(write(tmp_path, lines)))).data
    trials = data["trials"]
    assert trials["trial"] == {"of": ["a", "b"], "at": [0, 1]}
    assert trials["x"] == [0.123456, 12345678] and trials["act"]["of"] == ["relu", "gelu"]
    assert trials["loss"] == [float("inf"), None] and trials["failure"]["of"] == ["", "ValueError: x"]
    assert data["charts"] == [], "no loss is finite"
    assert data["goal"] == {"name": "loss", "maximize": False, "percent": False}


def test_the_table_has_what_objectives_chose_and_what_became_of_each_trial(tmp_path: Path) -> None:
    chosen = [{"alpha": 0.5}, {"alpha": 0.25, "beta": "x"}, {"alpha": 0.75}]
    lines = [
        trial_line(f"t{n}", {}, {"loss": n} if n else {}, begin=n, end=n + 1, segment=Segment(n), ending=ending)
        for n, ending in enumerate(map(Ending, (PRUNED, "", FAILED), ("", "", "E\nit diverged"), [{}] * 3, chosen))
    ]
    seen = Seen(page(read(write(tmp_path, lines, heading=header(objectives=["minimize loss"])))))
    trials = seen.data[0]["trials"]
    assert trials["alpha"] == [0.5, 0.25, 0.75] and trials["beta"] == {"of": ["", "x"], "at": [0, 1, 0]}
    assert trials["state"]["of"] == ["pruned", "complete", "failed"] and "alpha = 0.75" in seen.text
    assert trials["failure"]["of"] == ["", "it diverged"]


def test_values_and_parameters_may_be_called_as_a_column_of_the_page(tmp_path: Path) -> None:
    lines = [trial_line("a", {"trial": 5, "seconds": 6}, {"seconds": 7.0, "failure": 8.0, "x": 9.0}, begin=0, end=1)]
    trials = Seen(page(read(write(tmp_path, lines)))).data[0]["trials"]
    assert trials["trial"]["of"] == ["a"] and trials["seconds"] == [1] and trials["failure"]["of"] == [""]
    assert trials["trial (parameter)"] == [5] and trials["seconds (parameter)"] == [6] and trials["x"] == [9]
    assert trials["seconds (value)"] == [7] and trials["failure (value)"] == [8]


def test_every_study_leaves_a_report_and_the_command_makes_it_again(tmp_path: Path) -> None:
    """What rank 0 knows at its end is what the command reads."""
    for _ in range(2):
        studied(tmp_path / "r", 4)
        first = (tmp_path / "r" / "report.html").read_text()
        assert "4 candidates" in Seen(first).text
        assert main([str(tmp_path / "r")]) == Exit.DONE
        assert (tmp_path / "r" / "report.html").read_text() == first
    halving = tmp_path / "halving"
    for number in "12":
        shutil.copytree(tmp_path / "r", halving / f"iteration{number}")
        (halving / f"iteration{number}" / "report.html").unlink()
    assert main([str(halving)]) == Exit.DONE and len(list(halving.glob("*/report.html"))) == 2


@dataclass(frozen=True)
class Broken(Toy):
    """Its report has a section that breaks."""

    def reporting(self) -> Reporting:
        return Reporting(sections=lambda history, data: [1 / 0], files=("trials.csv",))  # type: ignore[list-item]


def test_a_report_that_breaks_leaves_the_study_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = RunOptions(workers=0, results=tmp_path, quiet=True)
    with pytest.raises(StorageError, match=r"report.html was not written \(ZeroDivisionError: division by zero\)"):
        run_study(Broken(2), options)
    assert (tmp_path / "trials.csv").exists() and not (tmp_path / "report.html").exists()
    assert status([str(tmp_path)]) == Exit.DONE
    monkeypatch.setattr(Broken, "reporting", Toy.reporting)
    run_study(Broken(2), options)
    assert (tmp_path / "report.html").exists()
