"""What a notebook shows of a study."""

from pathlib import Path
from typing import Any

import pytest

from mpitune import Choice, Float
from mpitune.optimize.search_study import SearchStudy
from tests.helpers import PATIENCE, ROOT
from tests.mpitune.optimize.objectives import searched


def test_a_study_shows_its_report() -> None:
    space = {"x": Float(0, 4), "kind": Choice("a", "<b>")}
    text = searched(lambda trial: trial.params["x"], space, n_trials=9)._repr_html_()
    assert text.startswith('<pre style="white-space: pre-wrap">9 trials: 9 complete\nthe best:') and "<b>" not in text
    assert repr(SearchStudy([], {"loss": False})) == "<SearchStudy of 0 trials for loss: report() tells more>"


CELL = """
import time
from mpitune import Int, search
def objective(trial):
    time.sleep(0.3)
    print("said by", trial.params)
    return {"loss": trial.params["n"]}
search(objective, {"n": Int(0, 5)}, strategy="grid", minimize="loss", workers=1, gpu="none");
"""


@pytest.mark.slow
def test_progress_is_one_line_of_the_cell_that_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    rewritten = []

    class Client(nbclient.NotebookClient):  # type: ignore[misc]
        def process_message(self, message: Any, *others: Any) -> Any:
            if message["msg_type"] == "update_display_data":
                rewritten.append(message["content"]["data"]["text/plain"])
            return super().process_message(message, *others)

    Client(notebook, timeout=PATIENCE, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = notebook.cells[0].outputs
    (line,) = (output.data for output in outputs if output.output_type == "display_data")
    assert line["text/plain"] == "6 of 6 trials"
    assert line["text/html"] == '<progress value="6" max="6"></progress> 6 of 6 trials'
    assert len(rewritten) > 1 and all(" of 6 trials" in text for text in rewritten)
    logged = "".join(output.text for output in outputs if output.output_type == "stream")
    assert logged.count("said by") == 6 and " of 6 trials, " not in logged
