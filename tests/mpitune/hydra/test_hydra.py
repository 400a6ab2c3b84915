"""Hydra's apps with hydra/sweeper=mpitune: the jobs of Hydra's own sweeper, and one study on any layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import PATIENCE

pytest.importorskip("hydra")
yaml = pytest.importorskip("yaml")

APP = """
import os, time
import hydra
from mpitune import current_trial

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    if config.fails:
        raise ValueError(f"{config.model.name} fails")
    for epoch in range(1, 6):
        time.sleep(config.seconds)
        loss = (config.lr - 0.01) ** 2 + 1 / config.model.units + 1 / epoch
        current_trial().report({"loss": loss}, step=epoch)
    (current_trial().folder / "done").touch()
    return [loss, config.lr] if config.two else None if config.silent else loss

main()
"""
CONFIG = """
defaults: [{model: small}, _self_]
lr: 0.1
seconds: 0
fails: false
two: false
silent: false
db: {driver: mysql, user: omry}
hydra: {sweep: {dir: out}, sweeper: {gpu: none, workers: 2}}
"""
OURS = ("--multirun", "hydra/sweeper=mpitune")


@pytest.fixture
def app(program: Any, tmp_path: Path) -> Any:
    """Runs the app in its folder."""
    (tmp_path / "conf/model").mkdir(parents=True)
    (tmp_path / "train.py").write_text(APP)
    (tmp_path / "conf/config.yaml").write_text(CONFIG)
    (tmp_path / "conf/model/small.yaml").write_text("{units: 8, name: small}")
    (tmp_path / "conf/model/large.yaml").write_text("{units: 64, name: large}")

    def run(*words: str, **how: Any) -> Any:
        return program(tmp_path / "train.py", *words, cwd=tmp_path, timeout=PATIENCE, **how)

    return run


def written(folder: Path) -> dict[str, Any]:
    """What Hydra has written of each job."""
    found = {}
    for name in ("config", "overrides", "hydra"):
        for path in folder.glob(f"*/.hydra/{name}.yaml"):
            said = yaml.safe_load(path.read_text())
            found[f"{path.parent.parent.name}/{name}"] = said["hydra"]["job"] if name == "hydra" else said
    return found


def results(folder: Path) -> Any:
    return yaml.safe_load((folder / "optimization_results.yaml").read_text())


@pytest.mark.slow
def test_a_sweep_without_trials_is_that_of_hydra(app: Any, tmp_path: Path) -> None:
    (tmp_path / "conf/config.yaml").write_text(CONFIG.replace(", sweeper: {gpu: none, workers: 2}", ""))
    words = (
        "lr=0.01", "db={driver:a,user:b}", "model=glob(*)", "db.user=c,'d e',null", "~db.driver", "++db.port=1",
        "+n=range(0.7,0,step=-0.3)", "two=false", "seconds=0,0.0", "+flag=true",
    )  # fmt: skip
    app("--multirun", "hydra.sweep.dir=theirs", *words)
    app(*OURS, "hydra.sweep.dir=ours", "hydra.sweeper.gpu=none", "hydra.sweeper.workers=2", *words)
    theirs, ours = written(tmp_path / "theirs"), written(tmp_path / "ours")
    assert len(theirs) == 3 * (2 * 3 * 3 * 2) and theirs == ours
    assert (tmp_path / "ours/multirun.yaml").exists()
    assert results(tmp_path / "ours")["best_params"]["model"] == "large"


@pytest.mark.slow
def test_a_configuration_of_the_optuna_sweeper(app: Any, tmp_path: Path) -> None:
    (tmp_path / "conf/config.yaml").write_text(
        CONFIG.replace("_self_]", "_self_, {override hydra/sweeper: mpitune}, {override hydra/sweeper/sampler: tpe}]")
        .replace("workers: 2", """workers: 2,
          direction: [minimize, maximize], n_trials: 5, n_jobs: 3, study_name: mine, storage: 'sqlite:///s.db',
          sampler: {seed: 1, n_startup_trials: 3}, params: {lr: 'interval(0.001, 0.1)', model: 'choice(small, large)',
            +x: 'range(-5, 5, step=0.5)', +n: 'range(9, 0, step=-2)', +s: 'shuffle(range(4))',
            +f: 'float(range(1, 4))', +g: 'range(0, 2.5)'}""")
    )  # fmt: skip
    for n_trials in (5, 2):  # the second command adds two
        app("--multirun", "two=true", "model=large", f"hydra.sweeper.n_trials={n_trials}")
    optuna = pytest.importorskip("optuna")
    study = optuna.load_study(study_name="mine", storage=f"sqlite:///{tmp_path}/s.db")
    d = optuna.distributions
    steps = {"+x": d.FloatDistribution(-5, 4.5, step=0.5), "+n": d.IntDistribution(1, 9, step=2)}
    steps |= {
        "+s": d.IntDistribution(0, 3),
        "+f": d.FloatDistribution(1, 3, step=1),
        "+g": d.FloatDistribution(0, 2, step=1),
    }
    known = {"lr": d.FloatDistribution(0.001, 0.1), **steps}
    assert len(study.trials) == 7 and study.trials[0].distributions == known
    found = results(tmp_path / "out")
    assert found["name"] == "mpitune" and len(found["solutions"]) == len(study.best_trials)


def test_an_experiment_that_names_the_class_of_another_sweeper(app: Any, tmp_path: Path) -> None:
    (tmp_path / "conf/hparams").mkdir()
    (tmp_path / "conf/hparams/search.yaml").write_text("""# @package _global_
defaults: [{override /hydra/sweeper: optuna}]
hydra:
  mode: MULTIRUN
  callbacks: {mine: {_target_: hydra.experimental.callback.Callback}}
  sweeper:
    _target_: hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper
    n_trials: 3
    params: {lr: 'interval(0.001, 0.1)'}
""")
    app("+hparams=search", "hydra/sweeper=mpitune")
    assert results(tmp_path / "out")["name"] == "mpitune"


REFUSED: list[tuple[list[str], str]] = [
    (["lr=interval(0, 1)"], "lr is an interval, whose values nobody can count: give hydra.sweeper.n_trials=20"),
    (["model=small,tiny"], "the job model=tiny cannot be configured: In 'config': Could not find 'model/tiny'"),
    (["modle=1,2"], "the job modle=1 cannot be configured: Could not override 'modle'."),
    (["hydra.sweeper.direction=up"], "hydra.sweeper.direction=up: give minimize or maximize"),
    (["lr=tag(log, interval(-1, 1))"], "lr=tag(log, interval(-1, 1)): give a lower end above 0"),
    (["hydra.sweeper.join=true"], "hydra.sweeper.join=true needs results that all jobs see"),
    (["hydra.sweeper.max_failure_rate=2"], "hydra.sweeper.max_failure_rate=2: give a part of all jobs, 0 to 1"),
    (["hydra.sweeper.timeout=-1"], "hydra.sweeper.timeout=-1"),
    (["hydra.sweeper.gpu=null", "lr=1,2"], "add hydra.sweeper.gpu=none (two workers on a GPU: 'hydra.sweeper."),
    (["hydra.sweeper.n_trials=0"], "hydra.sweeper.n_trials=0: give a whole number of at least 1"),
    (["+hydra.sweeper.sampler.n_ehvi_candidates=3"], "unexpected keyword argument 'n_ehvi_candidates'"),
    (["+hydra.launcher._target_=a.Launcher"], "hydra/launcher=a.Launcher: mpitune starts the jobs itself"),
    (["hydra.sweeper.pruner._target_=no.such"], "hydra.sweeper.pruner cannot be made by Optuna "),
    (["lr=0.1", "hydra.sweeper.n_trials=3"], "no parameter is swept, so all jobs would be the same: give one such"),
    (["model=small,large", "hydra.sweep.dir=train.py/x"], "train.py/x cannot be written (Not a directory): give"),
    (["+hydra.sweeper.param=3", "lr=0.1,0.2"], "hydra.sweeper has 'param': did you mean params?"),
    (["hydra.sweeper.params={lr: {init: 0.1}}"], ": give sweeps of Hydra, such as lr: interval(0.1, 1)"),
]  # fmt: skip
# Each command line in one process, as Hydra takes two seconds to import.
REFUSES = """
import contextlib, io, json, runpy, sys
told = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["train.py", *words]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            status = runpy.run_path("train.py", run_name="__main__") and 0
        except SystemExit as end:
            status = end.code
    told.append([status, said.getvalue()])
print(json.dumps(told))
"""


@pytest.mark.slow
def test_what_cannot_be_is_one_line(app: Any, program: Any, tmp_path: Path) -> None:
    lines = [
        [*OURS, *(word.replace("+hydra.launcher._target_", "hydra.launcher._target_") for word in words)]
        for words, _ in REFUSED
    ]
    done = program("-c", REFUSES, json.dumps(lines), cwd=tmp_path)
    for (words, told), (status, said) in zip(REFUSED, json.loads(done.stdout.splitlines()[-1]), strict=True):
        assert status == 2 and "Traceback" not in said, (words, said)
        assert said.splitlines()[-1].startswith("train.py: ") and told in said.splitlines()[-1], (words, said)
    assert not (tmp_path / "out/0").exists()


@pytest.mark.slow
def test_jobs_that_fail_or_return_nothing(app: Any, tmp_path: Path) -> None:
    done = app(*OURS, "model=small,large", "fails=true", status=1)
    assert "ValueError: small fails" in done.stderr
    done = app(*OURS, "model=small,large", "fails=true,false", "hydra.sweeper.max_failure_rate=0.4", status=1)
    assert "2 of 4 jobs have failed (the first is job 0), more than hydra.sweeper.max_failure_rate=0.4" in done.stderr
    app(*OURS, "model=small,large", "fails=true,false", "hydra.sweeper.max_failure_rate=0.5")
    assert results(tmp_path / "out")["best_params"] == {"model": "large", "fails": False}
    app(*OURS, "model=small,small", "silent=true", "hydra.sweep.dir=silent")  # a value that is there twice is two jobs
    assert sorted(path.name for path in (tmp_path / "silent").iterdir()) == ["0", "1", "multirun.yaml"]
    assert (tmp_path / "silent/1/t000001/done").exists()
    done = app(*OURS, "model=small,large", "silent=false,true", "hydra.sweep.dir=some", status=1)
    assert "job 1 returned nothing, and others a number" in done.stderr
    done = app(*OURS, "model=small,large", "hydra.sweeper.n_trials=3", "silent=true", "hydra.sweep.dir=none", status=2)
    assert "train.py: job 0 returned None: return a number, such as the loss" in done.stderr.splitlines()[-1]
    assert not list(tmp_path.glob("some/opt*")) and not list(tmp_path.glob("none/opt*"))


@pytest.mark.slow
def test_a_folder_is_of_one_sweep(app: Any, tmp_path: Path) -> None:
    words = [*OURS, "hydra.sweeper.n_trials=3", "hydra.sweeper.results=r", "hydra.sweeper.seed=1"]
    app(*words, "lr=interval(1,2)")
    for other in (["lr=interval(5,6)"], ["lr=interval(1,2)", "model=large"]):
        refused = app(*words, *other, status=2).stderr
        assert "train.py: r holds a study with space = lr=interval(1,2) (conf" in refused
        assert "RunOptions" not in refused
    (tmp_path / "train.py").write_text(APP.replace("(config.lr - 0.01)", "(config.lr - 0.02)"))
    assert "changed since" in app(*words, "lr=interval(1,2)").stderr
    (tmp_path / "conf/model/small.yaml").write_text("{units: 9, name: small}")
    assert "r holds a study with space =" in app(*words, "lr=interval(1,2)", status=2).stderr


@pytest.mark.slow
def test_the_first_failure_ends_the_sweep(app: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(APP.replace("    for epoch", "    os.kill(os.getpid(), 9)\n    for epoch"))
    said = app(*OURS, "lr=range(0,8)", "hydra.sweeper.workers=1", "hydra.sweeper.window=1", status=1).stderr
    assert "1 of 8 jobs have failed (the first is job 0)" in said
    assert not (tmp_path / "out/1").exists()


def test_a_value_twice_is_two_jobs() -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from mpitune.hydra.space import swept
    from mpitune.hydra.sweeper import _begun

    study = pytest.importorskip("optuna").create_study()
    part = swept(OverridesParser.create().parse_override("lr=0.1,0.1"), is_whole=True)
    assert _begun(study, {"lr": part}, {"n_trials": None}) == 2 == len(study.trials)
