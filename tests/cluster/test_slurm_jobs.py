"""The scripts of slurm/, submitted to a real Slurm: as users call them, from the repository's root."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mpitune.errors import Exit
from tests.helpers import PATIENCE, ROOT, journal_lines, table_without_run, wait_until

from .hosts import environment
from .slurm import Slurm

TOYS = ("-m", "tests.toys")
CPU = ("--gpu", "none", "--workers", "2")
THREE = ("--nodes=3", "--gpus-per-node=0", "--cpus-per-task=2")
AS_ROOT = {
    name: "1"
    for library in ("OMPI", "PRTE")
    for name in (f"{library}_ALLOW_RUN_AS_ROOT", f"{library}_ALLOW_RUN_AS_ROOT_CONFIRM")
}


FILES = {
    "search.py": """
import sys, time
from mpitune import Float, search
search(lambda t: time.sleep(SECONDS) or {"loss": t.params["x"]}, {"x": Float(0, 1)}, n_trials=24, minimize="loss",
       strategy="random", results=sys.argv[1])
""",
    "asks.py": """
import time, optuna
study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
study.optimize(lambda trial: time.sleep(SECONDS) or trial.suggest_float("x", 0, 1), n_trials=24)
""",
    "sweep.yaml": """
{command: [python, -c, 'import time; time.sleep(SECONDS); print("{\\"loss\\": 1}")'], method: random, run_cap: 24,
 metric: {name: loss, goal: minimize}, parameters: {x: {min: 0.0, max: 1.0}}}
""",
    "gangs.py": """
import sys
from mpitune import Command, Int, RunOptions, search
program = '''import json, os, sys
open(f"{{sys.argv[1]}}/{{os.environ['SLURM_PROCID']}}.host", "w").write(os.uname()[1])
print(json.dumps({{"loss": float(sys.argv[2])}}))'''
command = Command([sys.executable, "-c", program, "{folder}", "{nodes}.{x}"])
study = search(command, {"x": Int(0, 3)}, strategy="grid", minimize="loss", nodes=lambda params: 1 + params["x"] % 2,
               workers=1, results=sys.argv[1], options=RunOptions(quiet=True))
print([trial.values.get("loss") for trial in study.trials], [trial.error for trial in study.trials], flush=True)
""",
    "app.py": """
import hydra, time
@hydra.main(version_base=None, config_path=None)
def app(config): return time.sleep(SECONDS) or float(config.x)
app()
""",
}
HYDRA = "hydra/sweeper=mpitune +x=interval(0,1) hydra.sweeper.n_trials=24 hydra.sweep.dir=FOLDER/sweep"
KINDS = {  # of commands, 24 trials each
    "experiment": "-m tests.toys 12 --rounds 2 --seconds SECONDS --array-size 3 --results FOLDER/results",
    "search": "FOLDER/search.py FOLDER/results",
    "optuna": "-m mpitune --results FOLDER/results FOLDER/asks.py",
    "sweep": "-m mpitune run FOLDER/sweep.yaml --results FOLDER/results",
    "hydra": f"FOLDER/app.py --multirun {HYDRA} hydra.sweeper.results=FOLDER/results",
}


def command_of(kind: str, folder: Path, seconds: str = "0.3") -> list[str]:
    """Of that kind, with its files and its results in `folder`, and trials that take so long."""
    filled = {n: t.replace("FOLDER", str(folder)).replace("SECONDS", seconds) for n, t in (FILES | KINDS).items()}
    for name in FILES:
        (folder / name).write_text(filled[name])
    return filled[kind].split()


class Jobs:
    """Submits scripts of slurm/ with results and output in `folder`."""

    def __init__(self, slurm: Slurm, folder: Path):
        self.slurm, self.folder = slurm, folder
        folder.mkdir(exist_ok=True)
        self.results = folder / "results"

    def submit(self, script: str, *arguments: Any, options: tuple[str, ...] = THREE, **environ: str) -> int:
        output = f"--output={self.folder}/%x-%j.out"
        if str(self.results) not in " ".join(map(str, arguments)):
            arguments = (*arguments, "--results", self.results)
        command = ("sbatch", "--parsable", output, *options, f"slurm/{script}", *map(str, arguments))
        return int(self.slurm.run(*command, cwd=ROOT, env=AS_ROOT | environ).stdout)

    def wait(self, job: int, status: int = 0) -> str:
        """What the job printed; it must end with this exit status."""
        done = self.slurm.wait(job)
        said = Path(done["StdOut"]).read_text()
        assert done["ExitCode"] == f"{status}:0", f"{done['JobState']} {done['ExitCode']}\n{said}"
        return said

    def until_trials(self, n: int) -> None:
        assert wait_until(lambda: (self.results / "journal.jsonl").exists() and len(journal_lines(self.results)) >= n)


@pytest.fixture
def jobs(slurm: Slurm, tmp_path: Path) -> Jobs:
    return Jobs(slurm, tmp_path)


@pytest.fixture
def stubs(tmp_path: Path) -> dict[str, str]:
    """An environment whose nvidia-smi lists four GPUs; apptainer runs the command in no image; scontrol takes notes."""
    commands = {
        "nvidia-smi": "for n in 0 1 2 3; do echo \"GPU $n: Fake (UUID: GPU-$n)\"; done",
        "scontrol": f'echo "$@" >> {tmp_path}/scontrol.log',
        "apptainer": f'echo "$*" >> {tmp_path}/apptainer.log; shift 3; exec python "$@"',
    }  # fmt: skip
    (tmp_path / "bin").mkdir()
    for name, script in commands.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return {"PATH": f"{tmp_path}/bin:{environment()['PATH']}"}


DEVICES = """
import os, socket, sys, time
from pathlib import Path
from mpitune import Int, search

def objective(trial):  # ends once there is a trial on each of the six
    seen = Path("FOLDER") / "seen"
    seen.mkdir(exist_ok=True)
    (seen / (socket.gethostname() + os.environ["CUDA_VISIBLE_DEVICES"])).touch()
    end = time.monotonic() + 300
    while len(list(seen.iterdir())) < 6 and time.monotonic() < end:
        time.sleep(0.05)
    return {"visible": int(os.environ["CUDA_VISIBLE_DEVICES"])}

search(objective, {"x": Int(0, 23)}, strategy="grid", minimize="visible", results=sys.argv[1])
"""


@pytest.mark.parametrize(("launch", "image"), [("srun", "search.sif"), ("mpirun", "")])
def test_each_worker_sees_one_of_the_gpus_of_its_job(
    jobs: Jobs, stubs: dict[str, str], launch: str, image: str
) -> None:
    """Two GPUs on each of three nodes, which are others on node1, where another job has the first one."""
    other = jobs.slurm.run("sbatch", "--parsable", "--nodelist=node1", "--gpus=1", "-o/dev/null", "--wrap=sleep 1000")
    jobs.slurm.wait(int(other.stdout), {"RUNNING"})
    script = jobs.folder / "devices.py"
    script.write_text(DEVICES.replace("FOLDER", str(jobs.folder)))
    options = ("--nodes=3", "--gpus-per-node=2", "--cpus-per-task=2")
    jobs.wait(jobs.submit("search.sbatch", script, jobs.results, options=options, LAUNCH=launch, IMAGE=image, **stubs))
    lines = journal_lines(jobs.results)
    assert {(line["place"][0], line["place"][3]) for line in lines} == {
        *(("node1", f"cuda:{gpu}") for gpu in (1, 2)),
        *((f"node{n}", f"cuda:{gpu}") for n in (2, 3) for gpu in (0, 1)),
    }
    assert all(line["place"][3] == f"cuda:{line['values']['visible']:.0f}" for line in lines)
    if image:
        calls = (jobs.folder / "apptainer.log").read_text().splitlines()
        ranks = [call for call in calls if "devices.py" in call]
        assert len(ranks) == 3 and all(call.startswith(f"run --nv {image} {script} ") for call in ranks)


def test_scancel_leaves_no_process(slurm: Slurm, tmp_path: Path) -> None:
    both = {launch: Jobs(slurm, tmp_path / launch) for launch in ("srun", "mpirun")}
    study = (*TOYS, "5000", "--seconds", "0.1", *CPU)
    numbers = {launch: jobs.submit("search.sbatch", *study, LAUNCH=launch) for launch, jobs in both.items()}
    for jobs in both.values():
        jobs.until_trials(6)
    assert set(slurm.processes()) == {"node1", "node2", "node3"}
    for number in numbers.values():
        slurm.cancel(number)
        assert slurm.wait(number)["JobState"] == "CANCELLED"
    assert wait_until(lambda: slurm.processes() == {}), slurm.processes()
    last = (both["srun"].results / "journal.jsonl").read_text().splitlines()[-1]
    assert '"end":{"complete":false' in last, "each rank hears TERM and has KillWait to end the run"


def test_signals_to_srun(slurm: Slurm, tmp_path: Path) -> None:
    """Slurm's rows in docs/stopping.md. What srun kills is continued by the same command."""
    folder, log = tmp_path / "r", tmp_path / "log"
    study = (sys.executable, *TOYS, "4000", "--seconds", "0.1", *CPU, "--results", str(folder))

    def interrupt(number: int) -> int:
        known = len(journal_lines(folder)) if folder.exists() else 0
        with open(log, "w") as words:
            srun = slurm.login.popen("srun", "--mpi=pmix", *THREE, *study, stdout=words, stderr=words)
        assert wait_until(lambda: (folder / "journal.jsonl").exists() and len(journal_lines(folder)) > known + 6)
        srun.send_signal(number)
        if number == signal.SIGINT:  # the first says what runs
            assert wait_until(lambda: "sending Ctrl-C again" in log.read_text() or "abort" in log.read_text())
            srun.send_signal(number)
        status = srun.wait(timeout=PATIENCE)
        assert wait_until(lambda: slurm.processes() == {}), slurm.processes()
        return status

    assert interrupt(signal.SIGUSR1) == Exit.STOPPED and "run the same command to continue" in log.read_text()
    for number in (signal.SIGTERM, signal.SIGINT):  # most times 137, on a loaded machine also 14
        assert interrupt(number) not in (Exit.DONE, Exit.STOPPED)
    keys = [line["key"] for line in journal_lines(folder)]
    assert len(keys) == len(set(keys)) < 4000


def tell_of_the_end(jobs: Jobs, job: int) -> None:
    jobs.slurm.cancel(job, "--batch", "--signal=USR1")  # as Slurm does before the time limit


def kill_a_rank(jobs: Jobs, job: int) -> None:
    (rank,) = [one for one in jobs.slurm.processes()["node2"] if str(jobs.results) in one.command]
    os.kill(rank.pid, signal.SIGKILL)


EARLY_ENDS = [
    *(("srun", kind, tell_of_the_end) for kind in ("experiment", "search", "optuna", "sweep")),
    ("mpirun", "experiment", tell_of_the_end),
    ("srun", "experiment", kill_a_rank),  # who says what first, Slurm, mpirun or another rank's MPI, is chance
    ("mpirun", "experiment", kill_a_rank),
]


@pytest.mark.slow
def test_a_job_that_ended_early_continues_by_itself(slurm: Slurm, program: Any, tmp_path: Path) -> None:
    """All at once; each experiment becomes the same study as one process runs."""
    every = [Jobs(slurm, tmp_path / str(number)) for number in range(len(EARLY_ENDS))]
    numbers = [
        jobs.submit("search.sbatch", *command_of(kind, jobs.folder, "1"), options=(*THREE[:2], "-c1"), LAUNCH=launch)
        for jobs, (launch, kind, _) in zip(every, EARLY_ENDS, strict=True)
    ]
    for jobs, job, (_, _, event) in zip(every, numbers, EARLY_ENDS, strict=True):
        jobs.until_trials(4)
        event(jobs, job)
    program(*command_of("experiment", tmp_path))
    for jobs, job, (_, kind, event) in zip(every, numbers, EARLY_ENDS, strict=True):
        said = jobs.wait(job)
        assert slurm.job(job)["Restarts"] == "1", said
        keys = [line["key"] for line in journal_lines(jobs.results)]
        assert len(keys) == len(set(keys)) == 24
        if kind == "experiment":
            assert event is kill_a_rank or "SIGUSR1: running trials may finish within 90 s" in said
            assert {line["place"][0] for line in journal_lines(jobs.results)} == {"node1", "node2", "node3"}
            assert table_without_run(jobs.results / "trials.csv") == table_without_run(tmp_path / "results/trials.csv")


def test_srun_without_pmix_is_refused_with_the_fix(jobs: Jobs) -> None:
    said = jobs.wait(jobs.submit("search.sbatch", *TOYS, "5", *CPU, MPI="none"), status=2)
    assert said.count("start them with srun --mpi=pmix") == 1
    assert not jobs.results.exists()


@pytest.mark.parametrize(
    ("arguments", "environ", "text"),
    [
        (("-m",), {}, "no program: write it after the batch script"),
        ((*TOYS, "5"), {"LAUNCH": "ssh"}, "LAUNCH=ssh: give srun or mpirun"),
    ],
)
def test_mistakes_are_refused_in_a_line(tmp_path: Path, arguments: tuple[str, ...], environ: Any, text: str) -> None:
    done = subprocess.run(
        ["bash", "slurm/search.sbatch", *arguments], cwd=ROOT, env=os.environ | environ, capture_output=True, text=True
    )
    assert done.returncode == 2 and text in done.stderr and done.stderr.count("\n") == 1


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("optuna", "sweep", "hydra")]


@pytest.mark.parametrize("kind", ["experiment", "search", *SLOW])
def test_a_job_reaches_every_kind_of_command(tmp_path: Path, stubs: dict[str, str], kind: str) -> None:
    """Without Slurm: its devices, --join and USR1, after which the job goes back and ends what it has begun."""
    results, calls = tmp_path / "results", tmp_path / "scontrol.log"
    job = {"PYTHONPATH": str(ROOT), "SLURM_JOB_ID": "17", "SLURM_CPUS_PER_TASK": "3", **stubs}
    command = ["bash", "slurm/array.sbatch", *command_of(kind, tmp_path)]
    begin = partial(subprocess.Popen, command, cwd=ROOT, env=os.environ | job, stderr=subprocess.PIPE, text=True)
    first = begin()
    begun = lambda: (results / "journal.jsonl").exists() and len(journal_lines(results)) >= 3  # noqa: E731
    assert wait_until(lambda: first.poll() is not None or begun())
    first.send_signal(signal.SIGUSR1)
    said = first.communicate(timeout=PATIENCE)[1]
    assert first.returncode == Exit.STOPPED and calls.read_text() == "requeue 17\n", said
    assert said.startswith("for what the command does not say itself: --gpu none --workers 3 --grace 90 --join\n")
    assert len({line["place"][2] for line in journal_lines(results)}) == 3 and 3 <= len(journal_lines(results)) < 24
    said = (second := begin()).communicate(timeout=PATIENCE)[1]
    assert second.returncode == 0 and calls.read_text() == "requeue 17\n", said
    assert len({line["key"] for line in journal_lines(results)}) == len(journal_lines(results)) == 24
    assert len(list(results.glob("jobs/*/journal.jsonl"))) == 2


def test_a_job_that_kept_nothing_is_not_requeued() -> None:
    command = "SLURM_GPUS_ON_NODE=2 MPITUNE_OPTIONS='--grace 9' bash slurm/array.sbatch -c 'import sys; sys.exit(75)'"
    done = subprocess.run(command, cwd=ROOT, shell=True, capture_output=True, text=True)
    assert done.returncode == Exit.STOPPED and "not requeued, as no trial was kept" in done.stderr
    assert "itself: --grace 9 --gpu all --join\n" in done.stderr


@pytest.mark.slow
def test_job_arrays(slurm: Slurm, program: Callable[..., Any], tmp_path: Path) -> None:
    """Tasks that join: one is told of its end and requeued, one is cancelled, its node with it, and one comes later.
    Turns: two tasks on one results folder, the first of which is told of its end.
    """
    joined, turns = Jobs(slurm, tmp_path / "joined"), Jobs(slurm, tmp_path / "turns")
    study = (*TOYS, "10", "--courses", "3", "--rounds", "2", "--batch-trials", "2", "--array-size", "4")
    command, one_node, soon = (*study, "--seconds", "0.6"), THREE[1:], ("--heartbeat-timeout", "2")
    array = joined.submit("array.sbatch", *command, *soon, options=(*one_node, "--array=1-3"))
    in_turn = turns.submit("search.sbatch", *command, *CPU, options=(*THREE, "--array=1-2%1"))

    assert wait_until(lambda: (joined.results / "journal.jsonl").exists() and len(journal_lines(joined.results)) >= 6)
    slurm.run("scancel", "--batch", "--signal=USR1", f"{array}_1")
    slurm.run("scancel", "--signal=KILL", "--full", f"{array}_2")
    last = joined.submit("array.sbatch", *command, *soon, options=(*one_node, "--array=1"))
    turns.until_trials(6)
    slurm.run("scancel", "--batch", "--signal=USR1", f"{in_turn}_1")
    program(*study, *CPU, "--results", tmp_path / "one")
    joined.wait(array)
    joined.wait(last)
    assert len(list(joined.results.glob("jobs/*/journal.jsonl"))) >= 4
    assert len({line["key"] for line in journal_lines(joined.results)}) == 60
    assert wait_until(lambda: (joined.results / "trials.csv").exists())
    journal = turns.results / "journal.jsonl"
    assert wait_until(lambda: '"complete":true' in journal.read_text())
    assert journal.read_text().count('{"run":') == 2
    for jobs in (joined, turns):
        assert table_without_run(jobs.results / "trials.csv") == table_without_run(tmp_path / "one" / "trials.csv")


def test_search_under_srun_starts_trials_of_several_nodes(jobs: Jobs) -> None:
    """Rank 0 and the job's own srun: a trial of two nodes has a process on each, and every rank gets the study."""
    command_of("search", jobs.folder)  # which writes all files
    launch = ("srun", "--nodes=3", "--ntasks-per-node=1", "--mpi=pmix", "python")
    done = jobs.slurm.run(*launch, jobs.folder / "gangs.py", jobs.results, cwd=ROOT)
    said = [line for line in done.stdout.splitlines() if line[0] == "["]
    assert said == ["[1.0, 2.1, 1.2, 2.3] ['', '', '', '']"] * 3, done.stdout + done.stderr
    for number in range(4):
        hosts = [path.read_text() for path in (jobs.results / "trials" / f"t{number:06}").glob("*.host")]
        assert len(set(hosts)) == len(hosts) == 1 + number % 2
