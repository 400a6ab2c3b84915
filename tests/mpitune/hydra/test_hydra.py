"""Hydra's apps with hydra/sweeper=mpitune: the jobs of Hydra's own sweeper, and one study on any layout."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mpitune.errors import StudyError

pytest.importorskip("hydra")
optuna = pytest.importorskip("optuna")
d = optuna.distributions
yaml = pytest.importorskip("yaml")

APP = """
import os
import hydra
from mpitune import current_trial

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    if config.fails == "hard":
        os.kill(os.getpid(), 9)
    if config.fails:
        raise ValueError(f"{config.model.name} fails")
    for epoch in range(1, 6):
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
    (tmp_path / "conf/model").mkdir(parents=True)
    (tmp_path / "train.py").write_text(APP)
    (tmp_path / "conf/config.yaml").write_text(CONFIG)
    (tmp_path / "conf/model/small.yaml").write_text("{units: 8, name: small}")
    (tmp_path / "conf/model/large.yaml").write_text("{units: 64, name: large}")
    return lambda *words, **how: program(tmp_path / "train.py", *words, cwd=tmp_path, **how)


def results(folder: Path) -> Any:
    return yaml.safe_load((folder / "optimization_results.yaml").read_text())


def test_what_is_swept_is_what_optuna_draws_from(tmp_path: Path) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from mpitune.hydra.space import swept
    from mpitune.hydra.sweeper import _begun, _conclude

    for sweep, drawn_from in {
        "interval(0.001, 0.1)": d.FloatDistribution(0.001, 0.1),
        "tag(log, int(interval(1, 8)))": d.IntDistribution(1, 8, log=True),
        "range(0, 0.7, step=0.1)": d.FloatDistribution(0, 0.6, step=0.1),
        "range(9, 0, step=-2)": d.IntDistribution(1, 9, step=2),
        "shuffle(range(4))": d.IntDistribution(0, 3),
        "float(range(1, 4))": d.FloatDistribution(1, 3, step=1),
        "range(0, 2.5)": d.FloatDistribution(0, 2, step=1),
        "choice(1, 2.5, a, [a, b])": d.CategoricalDistribution([1, 2.5, "a", "[a,b]"]),
    }.items():
        assert swept(OverridesParser.create().parse_override(f"x={sweep}"), False)[0] == drawn_from
    study = optuna.create_study()
    _, values = swept(OverridesParser.create().parse_override("lr=0.1,0.1"), True)
    assert _begun(study, {"lr": values}, None) == 2 == len(study.trials)  # a value twice is two jobs
    for state, value in (("FAIL", None), ("COMPLETE", 1.0)):
        study.tell(study.ask(), value, getattr(optuna.trial.TrialState, state))
    _conclude(study, 0.5, tmp_path)  # as many as may fail
    with pytest.raises(StudyError, match="1 of 2 jobs have failed .*, more than hydra.sweeper.max_failure_rate=0.4"):
        _conclude(study, 0.4, tmp_path)


@pytest.mark.slow
def test_a_sweep_without_trials_is_that_of_hydra(app: Any, tmp_path: Path) -> None:
    (tmp_path / "conf/config.yaml").write_text(CONFIG.replace(", sweeper: {gpu: none, workers: 2}", ""))
    words = (
        "lr=0.01", "db={driver:a,user:b}", "model=glob(*)", "db.user=c,'d e',null", "~db.driver", "++db.port=1",
        "+n=range(0.7,0,step=-0.3)", "two=false", "seconds=0,0.0", "+flag=true",
    )  # fmt: skip
    app("--multirun", "hydra.sweep.dir=theirs", *words)
    app(*OURS, "hydra.sweep.dir=ours", "hydra.sweeper.gpu=none", "hydra.sweeper.workers=2", *words)
    written: dict[str, dict[str, Any]] = {"theirs": {}, "ours": {}}
    for path in tmp_path.glob("*s/*/.hydra/*.yaml"):
        content = yaml.safe_load(path.read_text())
        content = content["hydra"]["job"] if path.stem == "hydra" else content
        written[path.parts[-4]][f"{path.parts[-3]}/{path.name}"] = content
    assert len(written["ours"]) == 3 * (2 * 3 * 3 * 2) and written["ours"] == written["theirs"]
    assert (tmp_path / "ours/multirun.yaml").exists() and results(tmp_path / "ours")["best_params"]["model"] == "large"


@pytest.mark.slow
def test_a_configuration_of_the_optuna_sweeper(app: Any, tmp_path: Path) -> None:
    (tmp_path / "conf/config.yaml").write_text(
        CONFIG.replace("_self_]", "_self_, {override hydra/sweeper: mpitune}, {override hydra/sweeper/sampler: tpe}]")
        .replace("workers: 2", """workers: 2,
          direction: [minimize, maximize], n_trials: 5, n_jobs: 3, study_name: mine, storage: 'sqlite:///s.db', sampler:
            {seed: 1, n_startup_trials: 3}, params: {lr: 'interval(0.01, 0.1)', model: 'choice(small, large)'}""")
    )  # fmt: skip
    for n_trials in (5, 2):  # the second command adds two
        app("--multirun", "two=true", "model=large", f"hydra.sweeper.n_trials={n_trials}")
    study = pytest.importorskip("optuna").load_study(study_name="mine", storage=f"sqlite:///{tmp_path}/s.db")
    assert len(study.trials) == 7 and study.trials[0].distributions == {"lr": d.FloatDistribution(0.01, 0.1)}
    assert len(results(tmp_path / "out")["solutions"]) == len(study.best_trials)


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
    (["lr=interval(0, 1)"], "lr=interval(0, 1): nobody can count the values of an interval: give"),
    (["model=small,tiny"], "the job model=tiny cannot be configured: In 'config': Could not find 'model/tiny'"),
    (["+hydra.sweeper.sampler.n_ehvi_candidates=3"], "unexpected keyword argument 'n_ehvi_candidates'"),
    (["lr=tag(log, interval(-1, 1))", "hydra.sweeper.n_trials=3"], "train.py: lr=tag(log, interval(-1, 1)): "),
    (["hydra.sweeper.join=true"], "hydra.sweeper.join=true needs results that all jobs see"),
    (["hydra.sweeper.max_failure_rate=2"], "hydra.sweeper.max_failure_rate=2: give a part of all jobs, 0 to 1"),
    (["hydra.sweeper.max_failure_rate=null"], "hydra.sweeper.max_failure_rate=None: give a part of all jobs, 0 to 1"),
    (["hydra.sweeper.retry_failed=true", "hydra.sweeper.storage='sqlite:///s.db'"], "retry_failed=True is for"),
    (["hydra.launcher._target_=a.Launcher"], "hydra/launcher=a.Launcher: mpitune starts the jobs itself"),
    (["model=small,large", "hydra.sweep.dir=train.py/x"], "train.py/x cannot be written (Not a directory): give"),
    (["+hydra.sweeper.param=3", "lr=0.1,0.2"], "hydra.sweeper has 'param': did you mean params?"),
    (["hydra.sweeper.params={lr: {init: 0.1}}"], ": give sweeps of Hydra, such as lr: interval(0.1, 1)"),
]
REFUSES = """
import json, runpy, sys
for words in json.loads(sys.argv[1]):
    sys.argv = ["train.py", "--multirun", "hydra/sweeper=mpitune", *words]
    try:
        runpy.run_path("train.py", run_name="__main__")
    except SystemExit as end:
        print("status", end.code, file=sys.stderr)
"""


@pytest.mark.slow
def test_what_cannot_be_is_one_line_in_one_process(app: Any, program: Any, tmp_path: Path) -> None:
    done = program("-c", REFUSES, json.dumps([words for words, _ in REFUSED]), cwd=tmp_path)
    refused = re.findall(r"^(train\.py: .*)\nstatus 2$", done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr and not (tmp_path / "out/0").exists()
    assert [told for (_, told), line in zip(REFUSED, refused, strict=True) if told not in line] == []


@pytest.mark.slow
def test_jobs_that_fail_or_return_nothing(app: Any, tmp_path: Path) -> None:
    for fails, said in (("true", "ValueError: small fails"), ("hard", "1 of 8 jobs have failed (the first is job 0)")):
        assert said in app(*OURS, "lr=range(0,8)", f"fails={fails}", "hydra.sweeper.n_jobs=1", status=1).stderr
    assert not (tmp_path / "out/1").exists()
    app(*OURS, "model=small,large", "fails=true,false", "hydra.sweeper.max_failure_rate=0.5")
    assert results(tmp_path / "out")["best_params"] == {"model": "large", "fails": False}
    app(*OURS, "model=small,small", "silent=true", "hydra.sweep.dir=silent")  # a value that is there twice is two jobs
    assert (tmp_path / "silent/1/t000001/done").exists() and not (
        tmp_path / "silent/optimization_results.yaml"
    ).exists()
    (tmp_path / "train.py").write_text(APP.replace("if config.fails:", 'if config.lr == 1 > os.path.exists("k"):'))
    words = [*OURS, "lr=range(0,4)", "hydra.sweep.dir=again", "hydra.sweeper.results=r", "hydra.sweeper.n_jobs=1"]
    app(*words, status=1)
    assert ": give hydra.sweeper.retry_failed=true to run them again" in app(*words, status=1).stderr
    (tmp_path / "k").touch()
    app(*words, "hydra.sweeper.retry_failed=true")
    assert results(tmp_path / "again")["best_params"] == {"lr": 0} and (tmp_path / "again/3/t000003/done").exists()
    words = [*OURS, "model=small,large", "hydra.sweep.dir=some"]
    assert "job 1 returned nothing, and others a number" in app(*words, "silent=false,true", status=1).stderr
    done = app(*words, "hydra.sweeper.n_trials=3", "silent=true", status=1)
    assert "the objective returned None" in done.stderr and not list(tmp_path.glob("some/opt*"))


@pytest.mark.slow
def test_a_folder_is_of_one_sweep(app: Any, tmp_path: Path) -> None:
    words = [*OURS, "hydra.sweeper.n_trials=3", "hydra.sweeper.results=r", "hydra.sweeper.seed=1"]
    app(*words, "lr=interval(1,2)")
    multirun = (tmp_path / "out/multirun.yaml").read_bytes()
    assert "with seed = 1, not 2:" in app(*words, "lr=interval(1,2)", "hydra.sweeper.seed=2", status=2).stderr
    refused = app(*words, "lr=interval(1,2)", "model=large", status=2).stderr
    assert "train.py: r holds a study with space = lr=interval(1,2) (conf" in refused and "RunOptions" not in refused
    (tmp_path / "train.py").write_text(APP.replace("(config.lr - 0.01)", "(config.lr - 0.02)"))
    assert "changed since" in app(*words, "lr=interval(1,2)").stderr
    (tmp_path / "conf/model/small.yaml").write_text("{units: 9, name: small}")
    assert "r holds a study with space =" in app(*words, "lr=interval(1,2)", status=2).stderr
    assert (tmp_path / "out/multirun.yaml").read_bytes() == multirun
    words = [*OURS, "model=small,large", "hydra.sweeper.results=groups"]
    app(*words)
    assert (tmp_path / "out/multirun.yaml").read_bytes() != multirun
    (tmp_path / "conf/model/large.yaml").write_text("{units: 9, name: large}")
    assert "groups holds a study with space =" in app(*words, status=2).stderr
