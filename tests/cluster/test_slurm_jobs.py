"""The scripts of slurm/, submitted to a real Slurm: as users call them, from the repository's root."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpitune.errors import Exit
from tests.helpers import PATIENCE, ROOT, journal_lines, table_without_run, wait_until

from .hosts import environment
from .slurm import Slurm

TOYS = ("-m", "tests.toys")
CPU = ("--gpu", "none", "--workers", "2")
ONE = ("--gpu", "none", "--workers", "1")  # where a worker takes seconds to import PyTorch, or many jobs run
THREE = ("--nodes=3", "--gpus-per-node=0", "--cpus-per-task=2")
AS_ROOT = {
    name: "1"
    for library in ("OMPI", "PRTE")
    for name in (f"{library}_ALLOW_RUN_AS_ROOT", f"{library}_ALLOW_RUN_AS_ROOT_CONFIRM")
}


class Jobs:
    """Submits scripts of slurm/ with results and output in `folder`."""

    def __init__(self, slurm: Slurm, folder: Path):
        self.slurm, self.folder = slurm, folder
        folder.mkdir(exist_ok=True)
        self.results = folder / "results"

    def submit(self, script: str, *arguments: Any, options: tuple[str, ...] = THREE, **environ: str) -> int:
        output = f"--output={self.folder}/%x-%j.out"
        environ = {"RESULTS": str(self.results)} | AS_ROOT | environ
        command = ("sbatch", "--parsable", output, *options, f"slurm/{script}", *map(str, arguments))
        return int(self.slurm.run(*command, cwd=ROOT, env=environ).stdout)

    def wait(self, job: int, status: int = 0) -> str:
        """What the job printed; it must end with this exit status."""
        done = self.slurm.wait(job)
        said = Path(done["StdOut"]).read_text()
        assert done["ExitCode"] == f"{status}:0", f"{done['JobState']} {done['ExitCode']}\n{said}"
        return said

    def until_trials(self, n: int) -> None:
        journal = self.results / "journal.jsonl"
        assert wait_until(lambda: journal.exists() and len(journal_lines(self.results)) >= n), "no progress"


@pytest.fixture
def jobs(slurm: Slurm, tmp_path: Path) -> Jobs:
    return Jobs(slurm, tmp_path)


@pytest.fixture
def stubs(tmp_path: Path) -> dict[str, str]:
    """An environment whose nvidia-smi lists four GPUs, and whose apptainer runs the command in place of an image."""
    commands = {
        "nvidia-smi": "for n in 0 1 2 3; do echo \"GPU $n: Fake (UUID: GPU-$n)\"; done",
        "apptainer": f'echo "$*" >> {tmp_path}/apptainer.log; shift 3; exec python "$@"',
    }  # fmt: skip
    (tmp_path / "bin").mkdir()
    for name, script in commands.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return {"PATH": f"{tmp_path}/bin:{environment()['PATH']}"}


SEARCHES = {
    "mnist_svm": "3 --train-size 400",
    "mnist_nn": "2 3 --train-size 400 --epochs 2 --max-channels 8 --max-hidden-layer 32 --plot 1",
}


@pytest.mark.slow
@pytest.mark.parametrize(("search", "launch"), [("mnist_svm", "srun"), ("mnist_nn", "mpirun")])
def test_a_search_on_three_nodes_is_that_of_one_process(jobs: Jobs, program: Any, search: str, launch: str) -> None:
    command = ("-m", search, *SEARCHES[search].split(), "--dataset", "digits")
    one = jobs.folder / "one"
    program(*command, *ONE, "--results", one)
    said = jobs.wait(jobs.submit("search.sbatch", *command, *ONE, LAUNCH=launch))  # with code that is compiled by now
    assert "3 slots on 3 nodes" in said and ": complete" in said
    for table in ("results.csv", "trials.csv"):
        if (one / table).exists():
            assert table_without_run(jobs.results / table) == table_without_run(one / table)
    assert {line["place"][0] for line in journal_lines(jobs.results)} == {"node1", "node2", "node3"}


DEVICES = """
import os, socket, time
from dataclasses import dataclass
from pathlib import Path
from mpitune.cli import run
from mpitune.experiment import Experiment, one_round, per_trial
from mpitune.trial import Trial

@dataclass(frozen=True)
class Devices(Experiment):
    def searches(self):
        yield one_round(Trial(f"t{i}", {}) for i in range(24))

    def objective(self, worker):
        def objective(trial):  # ends once there is a trial on each of the six
            seen = Path(__file__).parent / "seen"
            seen.mkdir(exist_ok=True)
            (seen / (socket.gethostname() + os.environ["CUDA_VISIBLE_DEVICES"])).touch()
            end = time.monotonic() + 300
            while len(list(seen.iterdir())) < 6 and time.monotonic() < end:
                time.sleep(0.05)
            return {"visible": int(os.environ["CUDA_VISIBLE_DEVICES"])}
        return per_trial(objective)

if __name__ == "__main__":
    run(Devices)
"""


@pytest.mark.parametrize(("launch", "image"), [("srun", "search.sif"), ("mpirun", "")])
def test_each_worker_sees_one_of_the_gpus_of_its_job(
    jobs: Jobs, stubs: dict[str, str], launch: str, image: str
) -> None:
    """Two GPUs on each of three nodes, which are others on node1, where another job has the first one."""
    other = jobs.slurm.sbatch("--nodelist=node1", "--gpus=1", script="#!/bin/sh\nsleep 1000\n", cwd=jobs.folder)
    jobs.slurm.wait(other, {"RUNNING"})
    script = jobs.folder / "devices.py"
    script.write_text(DEVICES)
    options = ("--nodes=3", "--gpus-per-node=2", "--cpus-per-task=2")
    jobs.wait(jobs.submit("search.sbatch", script, options=options, LAUNCH=launch, IMAGE=image, **stubs))
    lines = journal_lines(jobs.results)
    assert {(line["place"][0], line["place"][3]) for line in lines} == {
        *(("node1", f"cuda:{gpu}") for gpu in (1, 2)),
        *((f"node{n}", f"cuda:{gpu}") for n in (2, 3) for gpu in (0, 1)),
    }
    assert all(line["place"][3] == f"cuda:{line['values']['visible']:.0f}" for line in lines)
    if image:
        calls = (jobs.folder / "apptainer.log").read_text().splitlines()
        ranks = [call for call in calls if "devices.py" in call]
        assert len(ranks) == 3 and all(call.startswith(f"run --nv {image} {script} --gpu all ") for call in ranks)


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

    goes_on = "run the same command to continue"
    assert interrupt(signal.SIGUSR1) == Exit.STOPPED and goes_on in log.read_text()
    for number in (signal.SIGTERM, signal.SIGINT):  # most times 137, on a loaded machine also 14
        assert interrupt(number) not in (Exit.DONE, Exit.STOPPED)
    keys = [line["key"] for line in journal_lines(folder)]
    assert len(keys) == len(set(keys)) < 4000


def tell_of_the_end(jobs: Jobs, job: int) -> None:
    """What Slurm does before the time limit."""
    jobs.slurm.cancel(job, "--batch", "--signal=USR1")


def kill_a_rank(jobs: Jobs, job: int) -> None:
    (rank,) = [one for one in jobs.slurm.processes()["node2"] if str(jobs.results) in one.command]
    os.kill(rank.pid, signal.SIGKILL)


EARLY_ENDS = [
    ("srun", tell_of_the_end, "SIGUSR1: running trials may finish"),
    ("mpirun", tell_of_the_end, "SIGUSR1: running trials may finish"),
    ("srun", kill_a_rank, ""),  # who says what first, Slurm, mpirun or another rank's MPI, is chance
    ("mpirun", kill_a_rank, ""),
]


@pytest.mark.slow
def test_a_job_that_ended_early_continues_by_itself(slurm: Slurm, program: Any, tmp_path: Path) -> None:
    """Four jobs at once; each becomes the same study as one process runs."""
    study = (*TOYS, "30", "--rounds", "2", "--array-size", "3")
    every = [Jobs(slurm, tmp_path / str(number)) for number in range(len(EARLY_ENDS))]
    numbers = [
        jobs.submit("search.sbatch", *study, "--seconds", "0.4", *ONE, LAUNCH=launch)
        for jobs, (launch, _, _) in zip(every, EARLY_ENDS, strict=True)
    ]
    for jobs, job, (_, event, _) in zip(every, numbers, EARLY_ENDS, strict=True):
        jobs.until_trials(10)
        event(jobs, job)
    program(*study, *CPU, "--results", tmp_path / "one")
    for jobs, job, (_, _, last_words) in zip(every, numbers, EARLY_ENDS, strict=True):
        said = jobs.wait(job)
        assert slurm.job(job)["Restarts"] == "1"
        assert last_words in said and said.index(last_words) < said.index(": complete")
        keys = [line["key"] for line in journal_lines(jobs.results)]
        assert len(keys) == len(set(keys)) == 60
        assert table_without_run(jobs.results / "trials.csv") == table_without_run(tmp_path / "one" / "trials.csv")


def test_srun_without_pmix_is_refused_with_the_fix(jobs: Jobs) -> None:
    said = jobs.wait(jobs.submit("search.sbatch", *TOYS, "5", *CPU, MPI="none"), status=2)
    assert said.count("start them with srun --mpi=pmix") == 1
    assert not jobs.results.exists()


@pytest.mark.parametrize(
    ("arguments", "environ", "text"),
    [
        ((), {}, "no program: write it after the batch script"),
        (("-m",), {}, "no program: write it after the batch script"),
        ((*TOYS, "5", "--results=here"), {}, "--results: set RESULTS=folder"),
        ((*TOYS, "5"), {"LAUNCH": "ssh"}, "LAUNCH=ssh: give srun or mpirun"),
    ],
)
def test_mistakes_are_refused_in_a_line(tmp_path: Path, arguments: tuple[str, ...], environ: Any, text: str) -> None:
    done = subprocess.run(
        ["bash", "slurm/search.sbatch", *arguments], cwd=ROOT, env=os.environ | environ, capture_output=True, text=True
    )
    assert done.returncode == 2 and text in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        ({}, "--gpu none --workers 1 --grace 90"),
        ({"SLURM_GPUS_ON_NODE": "0", "SLURM_CPUS_PER_TASK": "3"}, "--gpu none --workers 3 --grace 90"),
        ({"SLURM_GPUS_ON_NODE": "2", "SLURM_CPUS_PER_TASK": "3"}, "--gpu all --grace 90"),
    ],
)
def test_a_job_without_gpus_uses_its_cores(environ: dict[str, str], options: str) -> None:
    """Slurm says that there are 0 in a job that asked for none, on nodes that have some."""
    script = ["bash", "-c", '. slurm/job.sh; echo "${options[@]}"', "search.sbatch", *TOYS, "5"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    done = subprocess.run(script, cwd=ROOT, env=kept | environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == options


@pytest.mark.slow
def test_job_arrays(slurm: Slurm, program: Callable[..., Any], tmp_path: Path) -> None:
    """Tasks that join: one is told of its end and requeued, one is cancelled, its node with it, and one comes later.
    Turns: two tasks on one results folder, the first of which is told of its end.
    """
    joined, turns = Jobs(slurm, tmp_path / "joined"), Jobs(slurm, tmp_path / "turns")
    study = (*TOYS, "10", "--courses", "3", "--rounds", "2", "--batch-trials", "2", "--array-size", "4")
    command, one_node = (*study, "--seconds", "0.6"), THREE[1:]
    soon = ("--heartbeat-timeout", "2")
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


def test_search_under_srun_starts_trials_of_several_nodes(slurm: Slurm, tmp_path: Path) -> None:
    """Rank 0 and the job's own srun: a trial of two nodes has a process on each, and every rank gets the study."""
    command = ("srun", "--nodes=3", "--ntasks-per-node=1", "--mpi=pmix", "python", "-m")
    results = tmp_path / "results"
    done = slurm.run(*command, "tests.mpitune.optimize.slurm_gangs", results, cwd=ROOT)
    said = [line for line in done.stdout.splitlines() if line[0] == "["]
    assert said == ["[1.0, 2.1, 1.2, 2.3] ['', '', '', '']"] * 3, done.stdout + done.stderr
    for number in range(4):
        hosts = [path.read_text() for path in (results / "trials" / f"t{number:06}").glob("*.host")]
        assert len(set(hosts)) == len(hosts) == 1 + number % 2
