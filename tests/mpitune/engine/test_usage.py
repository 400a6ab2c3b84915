"""What a trial used of its machine: measured in the worker, kept in the journal, shown in the table."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from mpitune.devices.choose import visible_gpus
from mpitune.engine.usage import Meter
from mpitune.engine.worker import evaluated, unpacked
from mpitune.storage.history import read_study
from mpitune.trial import Evaluation, Result, Trial, Used
from tests.helpers import ROOT, TOYS, table
from tests.stand_ins import SLICES, A, Machine

MIB = 1 << 20
NVML = """
class NVMLError(Exception):
    pass
class memory:
    used = 1 << 30
def nvmlInit():
    pass
def nvmlDeviceGetHandleByUUID(name):
    return name
def nvmlDeviceGetMemoryInfo(handle):
    return memory
def nvmlDeviceGetUtilizationRates(handle):
    raise NVMLError
"""


def test_programs_that_a_trial_starts_are_counted() -> None:
    meter = Meter("cpu")
    meter.read()
    own = time.process_time()
    if (pid := os.fork()) == 0:
        while time.process_time() < 1.0:
            pass
        os._exit(0)
    os.waitpid(pid, 0)
    spent = meter.read().cpu_seconds
    assert spent is not None and spent > 0.9 > time.process_time() - own


def test_a_trial_lasts_until_it_was_measured() -> None:
    """Where cores are shared, other processes get one at this call; a slot was not idle meanwhile."""

    class Slow(Meter):
        def read(self) -> Used:
            time.sleep(0.05)
            return super().read()

    batch = tuple(Trial(f"t{n}", {}) for n in range(3))
    answers = evaluated(lambda trials: (Evaluation(trial.key, {}) for trial in trials), batch, Slow("cpu"))
    results = [unpacked(answer, None) for answer in answers]
    assert all(isinstance(result, Result) and result.seconds >= 0.05 for result in results)


@pytest.mark.slow
def test_of_a_slice_the_management_library_tells_only_the_memory(program: Any, tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(NVML)
    environ = Machine(tmp_path / "machine", gpus={A: SLICES[:1]}).environ(PYTHONPATH=f"{tmp_path}:{ROOT}")
    program(*TOYS, "2", "--gpu", "0", "--results", tmp_path / "r", env=environ)
    for result in read_study(tmp_path / "r").results.values():
        assert (result.used.gpu, result.used.gpu_bytes) == (None, 1024 * MIB), result
    header, row, *_ = (tmp_path / "r" / "trials.csv").read_text().splitlines()
    assert dict(zip(header.split(","), row.split(","), strict=True))["gpu_mib"] == "1024"


@pytest.mark.gpu
@pytest.mark.skipif(not visible_gpus(), reason="no GPU is visible")
def test_of_a_real_gpu_it_tells_both(program: Any, tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    program(*TOYS, "2", "--gpu", "0", "--results", tmp_path / "r")
    for result in read_study(tmp_path / "r").results.values():
        assert result.used.gpu is not None and 0 <= result.used.gpu <= 1 and result.used.gpu_bytes, result


@pytest.mark.slow
def test_without_the_library_a_gpu_is_used_all_the_same(program: Any, tmp_path: Path) -> None:
    program(*TOYS, "2", "--gpu", "0", "--results", tmp_path / "r", env=Machine(tmp_path / "machine").environ())
    assert all(result.used[2:] == (None, None) for result in read_study(tmp_path / "r").results.values())


def test_deaths_and_what_trials_used_are_in_the_journal(program: Any, tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    study = (*TOYS, "6", "--gpu", "none", "--workers", "1", "--at", "t2=sigkill")
    program(*study, "--marks", tmp_path / "marks", "--results", tmp_path / "r")
    history = read_study(tmp_path / "r")
    began, lasted = history.runs[0]["began"], history.ends[0]["seconds"]
    for result in history.results.values():
        assert began <= result.ended <= began + lasted and result.used.gpu is None
        assert (result.used.cpu_seconds or -1) >= 0 and (result.used.peak_bytes or 0) > 10 * MIB
    rows = table(tmp_path / "r" / "trials.csv")
    assert all(int(row["peak_mib"]) >= 10 and row["cpu_seconds"] for row in rows) and "gpu" not in rows[0]
    (death,) = history.deaths
    assert death.key == "t2" and "SIGKILL" in death.cause and death.place[3] == "cpu" and death.seconds >= 0


@pytest.mark.slow
def test_what_a_worker_that_died_had_worked_leaves_out_its_start(program: Any, tmp_path: Path) -> None:
    """The second worker takes as long to be built as the first; its trial kills it at once."""
    study = (*TOYS, "1", "--gpu", "none", "--workers", "1", "--compiles", "1.0", "--at", "t0=sigkill")
    program(*study, "--results", tmp_path / "r", status=None)
    deaths = read_study(tmp_path / "r").deaths
    assert [death.key for death in deaths] == ["t0", "t0"]
    assert deaths[1].seconds < deaths[1].time - deaths[0].time - 0.9
