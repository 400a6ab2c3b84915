"""What a user waits for before the first fit: small searches beside scikit-learn's, and how soon workers work.

    python -m benchmarks.start [--turns 5] [--data FOLDER] [--results FILE]

Each search is a script of its own, called as a user calls it, and timed as a whole process: imports, workers and end.
The script for scikit-learn differs in one import. Both take turns; medians are shown, and the ratio of each turn's
pair. Then, by a script that times itself: 16 workers, from the call until the last one begins its first trial, beside
the import of what they need; and a worker that is killed, until its replacement evaluates. The last row needs MNIST.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import circumstances, load, publish, table

ROOT = Path(__file__).parents[1]
HERE = {**os.environ, "PYTHONPATH": str(ROOT)}

OURS, THEIRS = "from mpitune.sklearn import GridSearchCV", "from sklearn.model_selection import GridSearchCV"

TREES = """
from sklearn.datasets import load_iris
from sklearn.tree import DecisionTreeClassifier
X, y = load_iris(return_X_y=True)
grid = {"max_depth": [1, 2, 3, 4], "min_samples_leaf": [1, 2, 5]}
for _ in range(%d):
    GridSearchCV(DecisionTreeClassifier(random_state=0), grid).fit(X, y)
"""

NEIGHBOURS = """
from sklearn.datasets import make_classification
from sklearn.decomposition import PCA
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
X, y = make_classification(2000, 50, n_informative=10, n_classes=4, random_state=0)
model = Pipeline([("pca", PCA(random_state=0)), ("knn", KNeighborsClassifier())])
grid = {
    "pca__n_components": [2, 5, 10, 20, 40],
    "knn__n_neighbors": [1, 3, 5, 7, 9, 11, 15, 21, 31, 51],
    "knn__weights": ["uniform", "distance"],
}
GridSearchCV(model, grid).fit(X, y)
"""

EXTRA_TREES = """
from sklearn.datasets import make_classification
from sklearn.ensemble import ExtraTreesClassifier
X, y = make_classification(2000, 50, n_informative=10, n_classes=4, random_state=0)
grid = {"n_estimators": [10, 20, 50, 100], "max_features": ["sqrt", 0.3]}
GridSearchCV(ExtraTreesClassifier(random_state=0), grid).fit(X, y)
"""

SEARCHES = {
    "12 trees on iris": TREES % 1,
    "20 searches of 12 trees on iris": TREES % 20,
    "PCA and nearest neighbours, 100 candidates, 2,000 x 50": NEIGHBOURS,
    "extra trees, 8 candidates, 2,000 x 50": EXTRA_TREES,
}

WORKERS = """
import os, signal, sys, time
from pathlib import Path
from mpitune import Int, search
from mpitune.options import RunOptions
import sklearn.svm

def objective(trial):
    began = time.time()
    sklearn.svm.SVC().fit([[0], [1]], [0, 1])
    time.sleep(0.2)
    return {"began": began}

class Killed:
    def __init__(self):
        self.marks = Path(sys.argv[1])
    def __call__(self, trial):
        began = time.time()
        mark = self.marks / str(trial.params["n"])
        if not mark.exists():
            mark.write_text(str(began))
            os.kill(os.getpid(), signal.SIGKILL)
        return {"began": began, "waited": began - float(mark.read_text())}

quiet = RunOptions(quiet=True)
begun = time.time()
study = search(objective, {"n": Int(0, 15)}, strategy="grid", minimize="began", workers=16, options=quiet)
print(max(record.values["began"] for record in study.trials) - begun)
study = search(Killed(), {"n": Int(0, 4)}, strategy="grid", minimize="began", workers=1, options=quiet)
print(sorted(record.values["waited"] for record in study.trials)[2])
"""

IMPORT = "import sklearn.svm, mpitune.optimize.tuning, mpitune.engine.worker"


def run(*arguments: str) -> str:
    """What a process of Python with these arguments prints."""
    return subprocess.run(
        [sys.executable, *arguments], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=HERE, text=True
    ).stdout


def seconds(*arguments: str) -> float:
    """The time that such a process takes."""
    begun = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - begun


def searches(turns: int, folder: Path) -> list[dict[str, Any]]:
    """A row for each search."""
    rows = []
    for name, code in SEARCHES.items():
        scripts = [folder / f"{kind}.py" for kind in ("ours", "theirs")]
        for script, line in zip(scripts, (OURS, THEIRS), strict=True):
            script.write_text(f"{line}\n{code}")
        pairs = [[seconds(str(script)) for script in scripts] for _ in range(turns)]
        ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
        times = statistics.median(theirs / ours for ours, theirs in pairs)
        row = {"search": name, "here, s": ours, "scikit-learn, s": theirs, "more, s": ours - theirs, "times": times}
        rows.append({key: value if key == "search" else f"{value:.2f}" for key, value in row.items()})
    return rows


def workers(turns: int, folder: Path) -> list[dict[str, Any]]:
    """Rows about workers of `search`, medians."""
    script, said = folder / "workers.py", []
    script.write_text(WORKERS)
    for turn in range(turns):
        marks = folder / str(turn)
        marks.mkdir()
        said.append([float(word) for word in run(str(script), str(marks)).split()[-2:]])
    last, replaced = (statistics.median(column) for column in zip(*said, strict=True))
    imported = statistics.median(seconds("-c", IMPORT) for _ in range(turns))
    return [
        {"what": "one process imports what workers need, and ends", "s": f"{imported:.2f}"},
        {"what": "16 workers: the last one begins its first trial", "s": f"{last:.2f}"},
        {"what": "a worker is killed: its replacement evaluates", "s": f"{replaced:.2f}"},
    ]


def published(turns: int, data: Path, folder: Path) -> list[dict[str, Any]]:
    """The row of `mnist_svm`. The first run, which may compile, does not count."""
    options = "5 --train-size 4000 --gpu none --workers 2"
    command = ["-m", "mnist_svm", *options.split(), "--data", str(data), "--results"]
    took = [seconds(*command, str(folder / f"svm{turn}")) for turn in range(turns + 1)][1:]
    return [{"what": f"mnist_svm {options}", "s": f"{statistics.median(took):.2f}"}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="runs of each script (default 5)")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="with MNIST, as torchvision keeps it")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the tables here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, before = Path(name), load()
        first = searches(arguments.turns, folder)
        second = workers(arguments.turns, folder)
        if arguments.data is not None:
            second += published(arguments.turns, arguments.data.resolve(), folder)
    facts = circumstances("scikit-learn", "numpy", "joblib", n=arguments.turns, load=before)
    publish("\n\n".join([facts, table(first), table(second)]), arguments.results)


if __name__ == "__main__":
    main()
