"""Scripts of Ray Tune, unchanged: what Ray promises them holds on workers, and the same on any layout."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mpitune.report.page import report_of
from mpitune.storage.history import read_study
from tests.helpers import journal_lines, journal_of

# Its scripts import it: to do so in each process that collects tests takes seconds.
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")

HEAD = """
import json, os, random, sys, tempfile
import numpy as np
import ray
from ray import tune
from ray.tune.schedulers import *
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch
from optuna.samplers import TPESampler

def show(name, grid):
    rows = [(trial.config, (trial.metrics or {}).get("loss"), (trial.metrics or {}).get("training_iteration"))
            for trial in grid]
    print(json.dumps([name, rows]))
    return grid

def fit(name, trainable, space, n=6, run=None, seed=3, drawn=0, **how):
    np.random.seed(seed)
    np.random.rand(drawn)
    how = {"num_samples": n, "metric": "loss", "mode": "min", **how}
    run = tune.RunConfig(**{"storage_path": os.path.abspath("storage"), "verbose": 0, **(run or {})})
    tuner = tune.Tuner(trainable, param_space=space, tune_config=tune.TuneConfig(**how), run_config=run)
    return show(name, tuner.fit())

def curve(config):
    for step in range(1, 9):
        tune.report({"loss": (config["x"] - 1) ** 2 + 1 / step})

def saving(config):
    begin = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            begin = json.load(open(folder + "/step"))
    for step in range(begin + 1, 9):
        with tempfile.TemporaryDirectory() as folder:
            json.dump(step, open(folder + "/step", "w"))
            tune.report({"loss": (config["x"] - 1) ** 2 + 1 / step}, checkpoint=tune.Checkpoint.from_directory(folder))
        if config.get("fails") and not begin and step == 3:
            os.system(config.get("first", "true"))
            raise ValueError("on purpose")

x = {"x": tune.uniform(0, 4)}
"""
FEATURES = (
    HEAD
    + """
ray.init(num_cpus=2)
assert ray.is_initialized() and ray.get([ray.put(1), ray.put("two")]) == [1, "two"]
kept, data = ray.put(np.ones(200_000)), np.arange(3.0)

def given(config, data):
    return {"loss": ray.get(kept).sum() + data.sum() + config["deep"]["n"]}

class Trained(tune.Trainable):
    def setup(self, config):
        self.n, self.x = 0, config["x"]
    def step(self):
        self.n += 1
        return {"loss": self.x + 1 / self.n, "should_checkpoint": self.n in (1, 2, 4)}
    def save_checkpoint(self, folder):
        return {"n": self.n}
    def load_checkpoint(self, kept):
        self.n = kept["n"]

space = {"deep": {"n": tune.grid_search([1, 2])}, "of": tune.sample_from(lambda spec: spec.config.deep["n"] * 2)}
wants = tune.with_resources(tune.with_parameters(given, data=data), {"cpu": 2})
grid = fit("given", wants, space, 1)
assert grid.get_best_result().config == {"deep": {"n": 1}, "of": 2} and not grid.errors
assert list(grid.get_dataframe()["config/of"]) == [2, 4]

grid = fit("asha", curve, x, 12, scheduler=ASHAScheduler(max_t=8, reduction_factor=2))
assert {trial.metrics["training_iteration"] for trial in grid} >= {1, 8}

heard = []
class Hears(tune.Callback):
    on_checkpoint = lambda self, trial, **about: heard.append(trial.last_result["training_iteration"])
grid = fit("classes", Trained, x, 3, {"stop": {"training_iteration": 5}, "callbacks": [Hears()],
    "checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=3, num_to_keep=2)})
assert heard == [1, 2, 3, 4, 5] * 3
best = grid.get_best_result()
assert best.metrics_dataframe["training_iteration"].tolist() == [1, 2, 3, 4, 5] and len(best.best_checkpoints) == 2
assert sorted(name for name in os.listdir(best.path) if "checkpoint" in name) == [
    "checkpoint_000003", "checkpoint_000004"]

fails = {**x, "fails": tune.grid_search([True, False])}
grid = fit("fails", saving, fails, 1)
assert grid.num_errors == 1 and "on purpose" in str(grid.errors[0])
grid = fit("recovers", saving, fails, 1, {"failure_config": tune.FailureConfig(max_failures=1)})
assert [trial.config["fails"] for trial in grid] == [True, False]
assert [trial.metrics["training_iteration"] for trial in grid] == [8, 8] and not grid.num_errors

mutations = PopulationBasedTraining("training_iteration", perturbation_interval=2, hyperparam_mutations=x)
grid = fit("population", saving, x, 4, {"checkpoint_config": tune.CheckpointConfig(num_to_keep=1)}, scheduler=mutations)
assert {trial.metrics["training_iteration"] for trial in grid} == {8} and not grid.errors
assert mutations._num_perturbations > 0

class Own(Searcher):
    drawn = random.Random(5)
    on_trial_complete = save = lambda self, *args, **named: None
    suggest = lambda self, trial_id: {"x": self.drawn.random()}
grid = fit("own searcher", lambda config: None, None, 1, search_alg=Own("loss", "min"))
assert grid[0].config["x"] == random.Random(5).random(), "of a trial that reports nothing"
def within(config):
    grid = tune.Tuner(lambda config: {"loss": config["y"] ** 2}, param_space={"y": tune.grid_search([3, -1, 2])},
        run_config=tune.RunConfig(verbose=0)).fit()
    return {"loss": grid.get_best_result("loss", "min").metrics["loss"] + config["x"]}
fit("within", within, x, 2)
seen = []
def alone(config, given):
    seen.append(given.append(1))
    return {"loss": len(seen) + len(given)}

grid = fit("alone", tune.with_parameters(alone, given=[]), x, 3)
assert [trial.metrics["loss"] for trial in grid] == [2, 2, 2], "a trial has seen what another one left"
analysis = tune.run(curve, config=x, num_samples=2, metric="loss", mode="min", verbose=0,
    stop=lambda trial_id, result: result["training_iteration"] >= 3)
assert [trial.last_result["training_iteration"] for trial in analysis.trials] == [3, 3]
print(json.dumps(["run", analysis.best_config]))

def loop(config):
    with tempfile.TemporaryDirectory() as folder:
        json.dump(ray.train.get_context().get_world_size(), open(folder + "/size", "w"))
        ray.train.report({"loss": config["x"] + 2}, checkpoint=tune.Checkpoint.from_directory(folder))
def trained(config):
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer
    trainer = TorchTrainer(loop, train_loop_config=config, scaling_config=ScalingConfig(num_workers=config.pop("n", 1)))
    result = trainer.fit()
    tune.report(result.metrics, checkpoint=result.checkpoint)

best = fit("trainer", trained, x, 2).get_best_result()
assert json.load(open(best.checkpoint.path + "/size")) == 1 and best.metrics["loss"] == best.config["x"] + 2
try:
    fit("trainers", trained, {**x, "n": 2}, 1)
except SystemExit as end:
    print(json.dumps(["refused", end.code]))
"""
)
NOT_HERE = "the script asks for a task, an actor or the cluster of Ray"


def run(program: Any, folder: Path, text: str, *options: str, **how: Any) -> tuple[dict[str, Any], str]:
    """What a script says of its studies, and all that it says."""
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(text)
    words = ["-m", "mpitune", "--gpu", "none", "--window", "4", *options, "script.py"]
    done = program(*words, cwd=folder, **how)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert "Checkpoint successfully" not in done.stdout and "driver_artifacts" not in done.stdout
    return dict(rows), done.stderr


@pytest.mark.slow
def test_what_scripts_do_is_as_ray_says_and_the_same_on_two_ranks(program: Any, tmp_path: Path) -> None:
    said, errors = run(program, tmp_path / "one", FEATURES, "--workers", "2")
    assert len(said) == 12 and said["refused"] == 2 and NOT_HERE in errors
    how = ["--workers", "1", "--results", "kept"]
    assert run(program, tmp_path / "two", FEATURES, *how, ranks=2)[0] == said


ALONE = (
    HEAD
    + """
if len(sys.argv) > 1:
    ray.init(num_cpus=2, include_dashboard=False)
how = {} if len(sys.argv) == 1 else {"max_concurrent_trials": 1}
fit("random", curve, {**x, "n": tune.grid_search([1, 2]), "c": tune.choice(["a", "b"])}, 1, **how)
fit("asha", curve, x, 6, scheduler=ASHAScheduler(max_t=8, reduction_factor=2, brackets=2), **how)
median = MedianStoppingRule("training_iteration", grace_period=1, min_samples_required=2)
fit("median", curve, x, 6, scheduler=median, **how)
fit("optuna", curve, x, 4, search_alg=OptunaSearch(seed=3), **how)
"""
)


@pytest.mark.slow
def test_ray_alone_has_the_same_trials(program: Any, tmp_path: Path) -> None:
    """One at a time; here and there with the same seed."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/script.py").write_text(ALONE)
    alone = program("script.py", "alone", cwd=tmp_path / "ray").stdout
    rows = dict(json.loads(line) for line in alone.splitlines() if line.startswith("["))
    assert run(program, tmp_path / "here", ALONE, "--window", "1", "--workers", "2")[0] == rows


QUICK = (
    HEAD
    + """
named = {**x, "drawn": tune.sample_from(lambda spec: random.random())}
fit("named", curve, named, 4, {"name": "mine"})
again = tune.Tuner.restore(os.path.abspath("storage/mine"), trainable=curve)
show("restored", again.fit())
bands = HyperBandScheduler("training_iteration", max_t=4)
ends = {"stop": lambda trial_id, result: result["training_iteration"] >= 3}
grid = fit("bands", saving, x, 3, {"name": "bands", **ends}, scheduler=bands)
assert max(trial.metrics["training_iteration"] for trial in grid) == 3
show("bands again", tune.Tuner.restore(os.path.abspath("storage/bands"), trainable=saving).fit())
data, held = np.zeros(3), ray.put(1)
def adding(config):
    return {"loss": config["x"] + data.sum() + ray.get(held), "odd": (np.zeros(2), {1: 2})}
class Asks(tune.Callback):
    on_trial_start = lambda self, **about: ray.nodes()
def remotely(config):
    try:
        ray.remote(curve).remote(config)
    except Exception:  # as scripts have it
        pass
    return {"loss": 1}
fit("own", adding, x, 2, {"name": "own"}, drawn=5)
data, held = data + 1, ray.put(2)
for given in [tune.with_parameters(lambda c, n: {"loss": n}, n=n) for n in (1, 9, 5)][:2]:
    fit("given", given, x, 1, {"name": "given"})
fit("changed", adding, x, 2, {"name": "own"})
def searched(seed):
    by = OptunaSearch(sampler=seed and TPESampler(seed=seed))
    return fit("of Optuna", curve, x, 1, {"name": f"optuna-{bool(seed)}"}, search_alg=by)
list(map(searched, (None, None, 3)))
pickled = open("storage/own/tuner.pkl", "rb").read()
for refused in (
    lambda: fit("time", curve, x, scheduler=MedianStoppingRule()),
    lambda: fit("unknown", curve, x, scheduler=type("Own", (FIFOScheduler,), {})()),
    lambda: fit("remote", remotely, x),
    lambda: remotely({}),
    lambda: fit("other", adding, {"x": tune.uniform(0, 5)}, run={"name": "own"}),
    lambda: fit("seed", adding, x, 2, {"name": "own"}, seed=4, drawn=5),
    lambda: (random.seed(4), fit("seed of random", adding, x, 2, {"name": "own"})),
    lambda: searched(4),
    lambda: fit("longer", curve, named, 4, {"name": "mine", "stop": {"training_iteration": 5}}),
    lambda: fit("more", adding, x, 3, {"name": "own"}),
    lambda: fit("asks", curve, x, run={"callbacks": [Asks()]}),
    lambda: ray.get_runtime_context().get_worker_id(),
    lambda: tune.Tuner.restore(os.path.abspath("storage/own"), trainable=adding, restart_errored=True).fit(),
):
    try:
        refused()
    except SystemExit as end:
        assert end.code == 2
    else:
        raise AssertionError("it was not refused")
assert open("storage/own/tuner.pkl", "rb").read() == pickled, "a refused start has changed it"
gone = {**x, "fails": True, "first": "rm -r " + os.path.abspath("storage/gone") + "/*/checkpoint*"}
error = fit("gone", saving, gone, 1, {"name": "gone", "failure_config": tune.FailureConfig(max_failures=1)}).errors[0]
assert isinstance(error, ValueError) and "does not exist on storage anymore" in str(error), error
"""
)
SAID = [
    "MedianStoppingRule(time_attr='time_total_s') decides by the clock", "scheduler Own is not here",
    NOT_HERE, NOT_HERE,
    "holds a study with space = ['x: Float (0, 4)", "holds a study with seed = 3, not 4: give another results folder",
    "holds a study with seed_of_random = 0, not", "optuna-True/mpitune holds a study with strategy = Search",
    "stop={'training_iteration': 5}", "holds a study with num_samples = 2, not 3",
    "Asks asks for a task", NOT_HERE, "Tuner.restore has resume_errored or restart_errored",
]  # fmt: skip


def test_named_studies_go_on_and_what_cannot_be_honoured_is_one_line(program: Any, tmp_path: Path) -> None:
    """Also where the script has `except Exception` around it. What has changed is told."""
    said, errors = run(program, tmp_path, QUICK, "--workers", "2")
    assert said["named"] == said["restored"] and len(said["named"]) == 4
    assert said["bands"] == said["bands again"]
    assert len(journal_lines(tmp_path / "storage/mine/mpitune")) == 4, "the restored study has run trials again"
    for name, folder in (("named", tmp_path / "storage/mine/mpitune"), ("bands", tmp_path / "storage/bands/mpitune")):
        report = report_of(folder, read_study(folder), None, None)
        assert report.best and report.best.value == min(row[1] for row in said[name])
    lines = [line for line in errors.splitlines() if line.startswith("script.py: ")]
    assert all(words in line for line, words in zip(lines, SAID, strict=True)), lines
    assert said["own"] == said["changed"] and "data, held (was 1, is 2) changed since the known results (2)" in errors
    assert "n (was 1, is 9) changed" in errors
    assert errors.count("trials of an earlier process have lists and texts for odd\n") == 1


def test_a_folder_of_a_stranger_removes_and_overwrites_nothing(program: Any, tmp_path: Path) -> None:
    from mpitune.ray.stage import read_kept

    text = 'fit("keeps", saving, x, 1, {"name": "s", "checkpoint_config": tune.CheckpointConfig(num_to_keep=1)})'
    run(program, tmp_path, HEAD + text)
    (theirs := tmp_path / "theirs").write_text("as it was")
    journal, params = tmp_path / "storage/s/mpitune/journal.jsonl", tmp_path / "storage/s/saving_00000/params.json"
    params.unlink()
    params.symlink_to(theirs)
    assert "params.json is a link" in run(program, tmp_path, HEAD + text, status=2)[1]
    params.unlink()
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    (kept := next(line["ending"]["for_door"] for line in lines if "key" in line))["results"][0][1] = str(theirs)
    journal.write_bytes(journal_of(lines))
    assert "trial 0 in the journal is none that Ray could" in run(program, tmp_path, HEAD + text, status=2)[1]
    assert theirs.read_text() == "as it was"
    for content in ("inf", {**kept, "end": "x"}, *({**kept, "results": [one]} for one in ([], [{}, None], [[]]))):
        with pytest.raises(ValueError, match="trial 3 in the journal is none that Ray could have"):
            read_kept(content, 3)
