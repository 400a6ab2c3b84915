"""What a notebook shows of a study."""

import base64
import re
from typing import Any

from mpitune import Choice, Float, Int, search
from mpitune.optimize.search_study import SearchStudy


def shown(objective: Any, *names: str) -> str:
    space = {"x": Float(0, 4), "kind": Choice("a", "<b>")}
    return search(objective, space, n_trials=20, minimize=names, workers=0)._repr_html_()


def test_a_study_shows_its_report_the_best_trials_and_a_picture() -> None:
    text = shown(lambda trial: {"loss": (trial.params["x"] - 1) ** 2}, "loss")
    assert text.startswith("<pre>20 trials: 20 complete\nthe best:\n  trial ") and "<b>" not in text
    rows = re.findall("<tr>(.*?)</tr>", text)
    assert rows[0] == "<td>trial</td><td>loss</td><td>x</td><td>kind</td>" and len(rows) == 6
    losses = [float(re.findall("<td>(.*?)</td>", row)[1]) for row in rows[1:]]
    assert losses == sorted(losses)
    (picture,) = re.findall('src="data:image/svg.xml;base64,(.*?)"', text)
    assert base64.b64decode(picture).startswith(b"<?xml")


def test_several_objectives_have_no_picture() -> None:
    text = shown(lambda trial: {"loss": trial.params["x"], "cost": -trial.params["x"]}, "loss", "cost")
    assert "the Pareto front:" in text and "<img" not in text


def test_failed_trials_are_counted() -> None:
    def objective(trial: Any) -> dict[str, float]:
        return {"loss": 1 / trial.params["n"]}

    study = search(objective, {"n": Int(0, 3)}, strategy="grid", minimize="loss", workers=1)
    assert "4 trials: 3 complete, 1 failed" in study._repr_html_()


def test_a_study_without_trials_says_so() -> None:
    assert SearchStudy([], {"loss": False})._repr_html_() == "<pre>no trials</pre>"
