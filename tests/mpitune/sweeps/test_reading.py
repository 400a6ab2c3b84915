"""What a sweep file may say, and what it is told where it says something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mpitune.errors import UsageError
from mpitune.sweeps.program import MACROS, arguments
from mpitune.sweeps.reading import read
from mpitune.sweeps.stopping import Bands
from tests.mpitune.sweeps.scripts import written


def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> str:
    file = written(tmp_path, **changes)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as error:
        read(file)
    return str(error.value).removeprefix(f"{file}: ")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"metod": "grid"}, "it has 'metod': did you mean method?"),
    ({"method": None}, "it is wrong, object missing required field method"),
    ({"method": "custom"}, "method is wrong, invalid enum value 'custom': give grid or random or bayes"),
    ({"metric": {"name": "loss", "goal": "max"}}, "metric.goal is wrong, invalid enum value 'max': give minimize or"),
    ({"metric": {"name": "loss", "impute": "best"}}, "metric has 'impute': there are name, goal, target"),
    ({"run_cap": 0}, "run_cap is wrong, expected int >= 1"),
    ({"mpitune": {"strategy": "asha"}}, "mpitune.strategy is wrong, invalid enum value 'asha': give grid or random or"),
    ({"early_terminate": {"type": "hyperband"}}, "early_terminate has no band: give min_iter, or max_iter and s"),
    ({"early_terminate": {"type": "hyperband", "min_iter": 1, "strict": False}}, "early_terminate.strict is false: "),
    ({"command": ["python", "--lr=${lr}"]}, "command has --lr=${lr}: give words of their own, of env, interpreter"),
    ({"metric": None, "method": "bayes"}, "it has no metric, which bayes and early_terminate need: give metric: "),
    ({"program": "trian.py"}, "program: trian.py is not in "),
    ({"program": None}, "program: none is not in "),
    ({"parameters": {}}, "parameters is wrong, expected object of length >= 1"),
    ({"parameters": {"a": {"value": 1}}}, "the space has no parameters but constants (a)"),
    ({"parameters": {"a.b": {"values": [1]}, "a": {"parameters": {"b": {"value": 1}}}}}, "parameters has a.b twice"),
]
BAD_PARAMETERS: list[tuple[Any, str]] = [
    (0.1, " is 0.1: write {value: 0.1}, or values, or min and max"),
    ({}, ": it has no min: int_uniform needs min, max"),
    ({"mim": 1, "max": 2}, ": it has 'mim': did you mean min?"),
    ({"min": "a", "max": 2}, ": min is 'a': give a number"),
    ({"min": 2, "max": 1}, ": Int(low=2, high=1, log=False, step=1): low must be below high"),
    ({"values": []}, ": values is []: give a list with one value or more"),
    ({"values": [1, 2], "probabilities": [0.5, 0.6]}, ": give a probability for each value, 1 together"),
    ({"values": [1, 2], "probabilities": ["a", "b"]}, ": give a probability for each value, 1 together"),
    ({"distribution": "log_unifrom", "min": 1, "max": 2}, ": its distribution is 'log_unifrom': give one of constant,"),
    ({"distribution": "log_uniform_values", "min": 0, "max": 2}, ": min is 0: give a number above 0"),
    ({"distribution": "normal", "mu": 1, "q": 2}, ": it has 'q': there are mu, sigma"),
    ({"distribution": "beta"}, ": its distribution is 'beta': give one of constant, "),
    ({"distribution": "log_uniform", "min": 0, "max": 1000}, ": math range error"),
]


@pytest.mark.parametrize(("changes", "said"), BAD, ids=str)
def test_what_is_wrong_is_said_by_name(
    changes: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refused(tmp_path, monkeypatch, **changes).startswith(said)


@pytest.mark.parametrize(("given", "said"), BAD_PARAMETERS, ids=str)
def test_what_is_wrong_with_a_parameter_is_said(
    given: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refused(tmp_path, monkeypatch, parameters={"lr": given}).startswith(f"parameters.lr{said}")


YAML = """
program: train.py
method: bayes
metric: {name: loss}
parameters:
  lr: {min: 1e-5, max: 1E-1}
  net:
    parameters:
      units: {values: [16, 2.5e1, 1e2, text-1e5, 2026-01-02]}
early_terminate: {type: hyperband, max_iter: 27, s: 2}
"""


def test_yaml_is_read_as_people_mean_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    written(tmp_path)
    (file := tmp_path / "sweep.yaml").write_text(YAML)
    monkeypatch.chdir(tmp_path)
    sweep, space, paths, strategy = read(file)
    assert repr(space) == (
        "{lr: Float(low=1e-05, high=0.1, log=False, step=None), "
        "net.units: Choice(16, 25.0, 100.0, 'text-1e5', '2026-01-02')}"
    )
    assert paths == {"lr": ("lr",), "net.units": ("net", "units")}
    assert sweep.command == ["${env}", "${interpreter}", "${program}", "${args}"]
    assert repr(strategy) == ("EarlyTerminate(sampler=Optuna(sampler='TPESampler'), bands=(3, 9), eta=3.0)")
    for bad in ("a: [", "- 1", "", "a: \t"):
        file.write_text(bad)
        with pytest.raises(UsageError) as error:
            read(file)
        assert "\n" not in str(error.value)


def test_bands_are_those_of_hyperband() -> None:
    for given, most, right in (
        ({"max_iter": 27, "s": 2}, 99, (3, 9)),
        ({"max_iter": 5, "s": 4, "eta": 2}, 99, (1, 2)),  # as 5 / 8 is less than one
        ({"min_iter": 4, "eta": 2}, 50, (4, 8, 16, 32)),
        ({"min_iter": 1, "eta": 1.2}, 3, (1, 2, 3)),
        ({"min_iter": 1, "eta": 2000.5}, 10**9, (1, 2000, 4002000)),
        ({"max_iter": 27, "s": 10**8}, 99, (1, 3, 9)),
    ):
        assert Bands("hyperband", **given).upto(most) == right  # type: ignore[arg-type]


@pytest.mark.slow
def test_arguments_are_those_of_wandbs_agent() -> None:
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    config = {"lr": 1e-05, "fast": True, "slow": False, "none": None, "net": {"units": [1, 2]}, "text": "a b"}
    theirs = utils.create_sweep_command_args({"args": {name: {"value": value} for name, value in config.items()}})
    theirs.pop("args_dict")
    ours = arguments(config)
    hydras = {"args_append_hydra", "args_override_hydra"}  # not in the oldest versions
    assert theirs == {name: ours[name] for name in theirs} and ours.keys() - hydras <= theirs.keys()
    assert set(MACROS) == {*ours, "env", "interpreter", "program", "args_json_file", "folder"}


MANY = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9 if n else 'x' * 9)}]\n" for n in range(12))
MERGED = "a0: &a0 {x: 1, y: 2}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40))
ITSELF = "parameters: &a {x: {parameters: *a}}\nmethod: grid\n"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is wrong, expected object, got null"),
        ("a: 1\na: 2\n", "it has a twice"),
        (MANY, "it cannot be read: its aliases stand for more than 100,000 values"),
        (MERGED, "it cannot be read: its aliases stand for more than 100,000 values"),
        (ITSELF, "it is nested too deeply, or contains itself"),
        ("a: !!set {b, c}\n", "it cannot be read: Object of type set is not JSON serializable"),
    ],
    ids="empty twice aliases merged itself set".split(),
)
def test_what_a_file_must_not_be_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(UsageError, match=said):
        read(tmp_path / "s.yaml")
