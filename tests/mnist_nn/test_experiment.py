import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mnist_nn.bootstrap import bootstrap_sample
from mnist_nn.experiment import Bagging
from mnist_nn.keys import refit_key
from mnist_nn.net import Images
from mnist_nn.network import Network
from mnist_nn.shapes import weights_of
from mpitune import RunOptions, load, run_study
from mpitune.engine.study import Study
from mpitune.errors import Exit
from mpitune.experiment import Objective, WorkerContext, per_trial
from mpitune.trial import WHOLE, Evaluation, NoRoom, Outcome, Result, Segment, Trial, seed_of
from tests.helpers import ROOT, evaluate, journal_lines, reported, table
from tests.mnist_nn.networks import autograd_step
from tests.mnist_nn.small import REFIT, TINY, computed, of_tiny
from tests.stand_ins import A, Machine

INF, NAN = float("inf"), float("nan")
pytestmark = of_tiny


def scored(loss: Callable[[Trial], float]) -> Objective:
    """Stands for training: folds have a given loss (NaN: failed); networks always answer 0."""

    def score(trial: Trial) -> Evaluation:
        if trial.segment.fold is not None:
            value = loss(trial)
            if np.isnan(value):
                return Evaluation(trial.key, error="it\nwas killed")
            return Evaluation(trial.key, {"loss": value, "epochs": 1.0, "train_loss": value})
        answer = np.eye(10, dtype=np.float32)[np.zeros(41, dtype=int)]
        values = {"train_error": 0.5, "test_error": 0.9, "epochs": 1.0}
        return Evaluation(trial.key, values, {"probabilities": answer[:40], "extra_probabilities": answer[:1]})

    return per_trial(score)


@pytest.mark.parametrize(
    ("command", "ranks"), [("mnist_nn 1 1", 2), pytest.param("mnist_nn.ddp", 2, marks=pytest.mark.slow)]
)
def test_without_torch_they_say_what_to_install(program: Any, tmp_path: Path, command: str, ranks: int) -> None:
    """torch is hidden as Python hides a module."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    (tmp_path / "empty").mkdir()
    done = program("-m", *command.split(), env=env, cwd=tmp_path / "empty", ranks=ranks, status=Exit.USAGE)
    line = "torch is not installed: pip install -r requirements.txt (with GPUs requirements-cu12.txt, -cu13 or -cu11)"
    said = [text for text in done.stderr.splitlines() if "torch" in text or "Error" in text or "Traceback" in text]
    assert len(said) in (1, ranks)
    for told in said:  # with the host's name where others may have it
        assert re.fullmatch(rf"python -m {command.split()[0]}( on \S+|): (\S+: |){re.escape(line)}", told)
    assert ranks or len(done.stderr.splitlines()) == 1
    assert not list((tmp_path / "empty").iterdir())


def test_the_cost_of_a_training_is_its_weights_times_its_share_of_the_images() -> None:
    experiment = Bagging(1, 10, max_conv_layer=20)
    for (trial,) in next(next(iter(experiment.searches()))):
        assert experiment.cost(trial) == pytest.approx(weights_of(trial.params, (28, 28), 10) * 4 / 5)
    outcomes = evaluate(TINY, objective=scored(lambda trial: 1.0))
    refit = next(trial for trial, _ in outcomes if trial.key == REFIT)
    assert TINY.cost(refit) == weights_of(refit.params, (8, 8), 10) and len(outcomes) == TINY.n_trials()


def test_a_bootstrap_is_refitted_as_soon_as_its_own_trials_are_in() -> None:
    study = Study(TINY.searches(), {}, {})
    objective = scored(lambda trial: float(trial.params["tuning"] != 1))
    of_second = [batch for batch in study.start() if batch[0].params["bootstrap"] == 1]
    (refit,) = [new for batch in of_second for result in objective(batch) for new in study.record(result)]
    assert refit[0].key == refit_key(1, True) and refit[0].params["tuning"] == 1 and refit[0].segment is WHOLE


def test_a_result_depends_neither_on_its_batch_nor_on_what_ran_before() -> None:
    """A fold of the first bootstrap sample, all of the second in the other order."""
    objective = TINY.objective(WorkerContext("cpu", TINY.data()))
    some = [outcome for outcome in computed() if outcome.trial.params["bootstrap"] or outcome.trial.key == "b0/t1/f2"]
    for (_, one), other in zip(reversed(some), objective(tuple(trial for trial, _ in reversed(some))), strict=True):
        assert isinstance(other, Evaluation) and one.values == other.values, one.key
        assert one.arrays.keys() == other.arrays.keys()
        assert all(np.array_equal(one.arrays[name], other.arrays[name]) for name in one.arrays)


def test_the_images_of_a_validation_fold_are_not_learned_from() -> None:
    """Without them the training is the same, and only the validation is another."""
    data = TINY.data()
    trial = next(trial for trial, _ in computed() if trial.key == "b0/t0/f1")
    (expected,) = TINY.objective(WorkerContext("cpu", data))((trial,))
    indices, folds = bootstrap_sample(150, 3, seed_of(0, "b0"))
    changed = {**data, "train_images": data["train_images"].copy()}
    changed["train_images"][indices[folds[1]]] = 0
    (result,) = TINY.objective(WorkerContext("cpu", changed))((trial,))
    assert result.value("train_loss") == expected.value("train_loss")
    assert result.value("loss") != expected.value("loss")


def test_the_report_of_a_real_study(study: tuple[Path, str]) -> None:
    (folder, printed), data = study, TINY.data()
    assert {path.name for path in folder.iterdir()} <= set(TINY.reporting().files or ())
    rows = table(folder / "results.csv")
    refits = [result for trial, result in computed() if trial.segment.fold is None]
    for row, refit in zip(rows, refits, strict=True):
        folds = [r.value("loss") for t, r in computed() if t.key.startswith(f"b{row['bootstrap']}/t{row['tuning']}/")]
        assert float(row["cv_loss"]) == np.mean(folds) and len(folds) == 3
        assert float(row["test_error"]) == refit.value("test_error")
    assert len(table(folder / "trials.csv")) == TINY.n_trials() == 14
    with np.load(folder / "predictions.npz") as file:
        probabilities, labels, extra = (file[name] for name in ("probabilities", "labels", "extra_probabilities"))
    assert probabilities.shape == (2, 40, 10) and probabilities.dtype == np.float32 and extra.shape == (2, 1, 10)
    assert np.array_equal(labels, data["test_labels"])
    for row, network in zip(rows, probabilities, strict=True):
        assert float(row["test_error"]) == np.mean(network.argmax(axis=1) != labels)
    mean = np.mean(probabilities.mean(axis=0).argmax(axis=1) != labels)
    assert f"{mean:.2%} by mean probability" in printed
    names = {path.stem.split("-test-")[0] for path in (folder / "figures").glob("*.svg")}
    assert names == {"unsure-01", "unsure-02", "unsure-03", "no-digit"}


def test_saved_networks_answer_as_the_study_did(study: tuple[Path, str]) -> None:
    """The modules that docs/training.md names, from the files alone."""
    folder, images = study[0], Images(torch.tensor(TINY.data()["test_images"]), 16.0).normalised()
    with np.load(folder / "predictions.npz") as file:
        probabilities = file["probabilities"]
    rows, paths = table(folder / "results.csv"), sorted((folder / "models").glob("*.pt"))
    for row, path, expected in zip(rows, paths, probabilities, strict=True):
        about = json.loads(path.with_suffix(".json").read_text())
        assert (
            about["image"] == [8, 8, 16] and {k: str(v) for k, v in about["parameters"].items()}.items() <= row.items()
        )
        network = Network(about["parameters"], (8, 8), 10)
        network.load_state_dict(torch.load(path, weights_only=True))
        with torch.inference_mode():
            np.testing.assert_allclose(network(images).softmax(1).numpy(), expected, rtol=1e-4, atol=1e-6)


def test_a_bootstrap_without_a_network_keeps_its_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = evaluate(TINY, objective=scored(lambda trial: (INF, 1.0)[int(trial.params["bootstrap"])]))
    assert [trial.key for trial, _ in outcomes if trial.segment.fold is None] == [refit_key(1, True)]
    reported(replace(TINY, plot=1), outcomes, TINY.data(), tmp_path)
    first, second = table(tmp_path / "results.csv")
    assert first["test_error"] == first["learning_rate"] == "nan" and "no parameter set" in first["error"]
    assert second["test_error"] == "0.9" and second["error"] == ""
    with np.load(tmp_path / "predictions.npz") as file:
        assert np.isnan(file["probabilities"][0]).all() and not np.isnan(file["probabilities"][1]).any()
    out = capsys.readouterr().out
    assert "no network: no parameter set has a finite loss" in out and "ensemble of 1" in out


def test_a_study_without_any_network_is_reported(tmp_path: Path) -> None:
    reported(TINY, evaluate(TINY, objective=scored(lambda trial: NAN)), TINY.data(), tmp_path)
    assert all(row["error"] == "was killed" for row in table(tmp_path / "trials.csv"))
    assert not (tmp_path / "figures").exists()


def test_a_training_that_diverges_has_an_infinite_loss_and_gives_no_network(tmp_path: Path) -> None:
    objective = TINY.objective(WorkerContext("cpu", TINY.data()))
    refit = next(trial for trial, _ in computed() if trial.key == REFIT)
    wild = {**refit.params, "learning_rate": 1e30, "momentum": 0.9}
    fold, network = objective((Trial("b0/t0/f0", wild, Segment(fold=0)), Trial(REFIT, wild)))
    assert fold.values["loss"] == fold.values["train_loss"] == INF
    assert network.values["test_error"] == INF and not network.arrays
    recorded = Result(network.key, network.values)
    outcomes = [Outcome(t, recorded if t.key == REFIT else r) for t, r in computed()]
    reported(replace(TINY, plot=0), outcomes, TINY.data(), tmp_path)
    first, second = table(tmp_path / "results.csv")
    assert first["error"] == "its training diverged" and second["error"] == ""


def test_a_network_ruined_by_its_last_step_is_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of a step is measured before it, so that of the last one can be finite all the same."""
    from mnist_nn import training

    def ruined(*arguments: Any, **options: Any) -> training.Trained:
        trained = original(*arguments, **options)
        trained.weights["output.bias"].fill_(NAN)
        return trained

    refit = next(trial for trial, _ in computed() if trial.key == REFIT)
    original = training.train
    monkeypatch.setattr(training, "train", ruined)
    fold, network = TINY.objective(WorkerContext("cpu", TINY.data()))(
        (Trial("b0/t0/f0", refit.params, Segment(fold=0)), refit)
    )
    assert fold.values["loss"] == INF and np.isfinite(fold.values["train_loss"])
    assert network.values["test_error"] == INF and not network.arrays


def test_a_search_has_the_losses_the_choice_and_the_epochs_that_it_has_with_autograd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mnist_nn.training.make_step", autograd_step)
    known = {trial.key: (trial, result) for trial, result in computed()}
    for trial, expected in evaluate(replace(TINY, n_bootstrap=1)):
        same, found = known[trial.key]
        assert trial == same  # the refit too, so the sample has chosen the same set
        for name in expected.values:
            assert found.value(name) == pytest.approx(expected.value(name), rel=1e-4), (trial.key, name)


@pytest.mark.slow
def test_a_network_without_memory_is_not_begun_and_says_what_it_takes(program: Any, tmp_path: Path) -> None:
    """All these networks are too large, yet the one worker is not given up, which three deaths in a row would do."""
    command = "-m mnist_nn 1 3 --dataset digits --train-size 60 --folds 2 --gpu none --workers 1 --plot 0".split()
    command += ["--max-channels", "100000", "--max-hidden-layer", "1000000", "--results", str(tmp_path)]
    done = program(*command, status=Exit.STOPPED)
    assert not journal_lines(tmp_path), "a larger machine may have room for them"
    told = re.findall(
        r"no worker here has room for it: its network takes [\d.e+]+ GB and this worker has [\d.e+]+ GB", done.stderr
    )
    assert len(told) == 1, "the end counts the others"
    assert "6 trials were not run" in done.stderr
    assert "to end on this machine, begin anew with a smaller --max-channels" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("the same command goes on where there is more room")
    assert "6 trials were not run, such as" in program(*command, "--quiet", status=Exit.STOPPED).stderr


def test_a_study_shows_the_trials_of_its_last_command_alone(tmp_path: Path) -> None:
    for save_models in (True, False):  # whose refits are others
        tiny = replace(TINY, n_bootstrap=1, n_tuning=1, epochs=1, plot=0, save_models=save_models)
        run_study(tiny, RunOptions(workers=0, gpu="none", quiet=True, results=tmp_path))
    assert len(load(tmp_path).trials) == tiny.n_trials()


def test_the_memory_of_a_node_is_shared_by_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    trial, data = computed()[0].trial, TINY.data()
    needed = TINY.memory_bytes(trial)
    for workers, free, fits in [(1, needed, True), (1, needed - 1, False), (4, 4 * needed, True), (4, needed, False)]:
        monkeypatch.setattr("mnist_nn.objective.free_memory", lambda free=free: free)
        (result,) = TINY.objective(WorkerContext("cpu", data, n_workers=workers))((trial,))
        assert isinstance(result, NoRoom) != fits
    assert isinstance(result, NoRoom) and result.reason.endswith("give --workers 1")
    # A worker that replaces another one, while the others are at work, has as much as that one had.
    (result,) = TINY.objective(WorkerContext("cpu", data, n_workers=4, memory=needed + (1 << 40)))((trial,))
    assert isinstance(result, Evaluation)


def test_a_gpu_that_pytorch_cannot_use_is_one_line_before_anything_starts(program: Any, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "torch.py").write_text("raise RuntimeError('The NVIDIA driver on your system is too old')\n")
    environ = Machine(tmp_path / "machine").environ(PYTHONPATH=f"{tmp_path / 'lib'}:{ROOT}")
    command = ("-m", "mnist_nn", 1, 1, "--dataset", "digits", "--results", tmp_path / "r")
    done = program(*command, env=environ, status=Exit.USAGE)
    (line,) = done.stderr.splitlines()
    assert f"torch cannot use cuda:{A} (RuntimeError: The NVIDIA driver on your system is too old): install the" in line
    assert line.endswith(", or give --gpu none")
    assert not (tmp_path / "r").exists()
