"""Data-parallel training: it computes what one process would, under each launcher, and ends when a part of it dies."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.errors import Exit, UsageError
from common.storage.journal import Journal
from common.trial import Result, Trial
from mnist_nn.ddp import main
from mnist_nn.parallel.architecture import best_of
from mnist_nn.parallel.process import check_machine
from mnist_nn.parallel.rendezvous import (
    Address,
    LaunchInfo,
    derived_port,
    first_node,
    known_address,
    launch_info,
    refuse_two_on_a_gpu,
)  # fmt: skip
from mnist_nn.parallel.settings import Settings
from mnist_nn.predict import load_model
from tests.helpers import PATIENCE, ROOT
from tests.mnist_nn.scaled_digits import write_as_mnist
from tests.mnist_nn.trainings import ONE_THREAD, free_port, losses, rows

ENDS_WITHIN_S = PATIENCE  # gloo itself waits for 30 minutes


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 training and 101 test images."""
    folder = tmp_path_factory.mktemp("data")
    write_as_mnist(folder, 300, 101)
    return folder


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Here and in the processes that are started: cores are few and shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ONE_THREAD.items():
            patch.setenv(name, value)
        yield
    torch.set_num_threads(before)


# The same steps, whatever the number of processes


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("worlds")
    command = (sys.executable, "-m", "tests.mnist_nn.worlds", folder)
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **ONE_THREAD}, stderr=subprocess.PIPE, text=True)
    assert not done.returncode, done.stderr
    return {file.stem: np.load(file) for file in folder.glob("*.npz")}


@pytest.mark.slow
@pytest.mark.numerical
@pytest.mark.xdist_group("worlds")
@pytest.mark.parametrize("world", ["1-ddp", "2-ddp", "3-ddp", "3-hosts", "2-strangers", "2-fsdp", "3-fsdp"])
def test_gradients_metrics_and_weights_are_those_of_one_process(worlds: dict[str, Any], world: str) -> None:
    """A full and an uneven batch, the latter with fewer images than processes; the loss of each epoch; the test."""
    expected, found = worlds["reference"], worlds[world]
    assert set(found) == set(expected)
    for name in expected:
        np.testing.assert_allclose(
            found[name], expected[name], rtol=0, atol=2e-5 * abs(expected[name]).max(), err_msg=name
        )


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process with batches of 128."""
    folder = tmp_path_factory.mktemp("alone")
    assert main(["--data", str(data), "--results", str(folder), "--epochs", "2", "--batch-size", "128"]) == Exit.DONE
    return folder


COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


@pytest.mark.xdist_group("ddp alone")
@pytest.mark.parametrize(
    ("launcher", "ranks", "options"),
    [
        pytest.param((), 2, (), id="mpirun"),
        pytest.param(TORCHRUN, 0, (), id="torchrun", marks=pytest.mark.slow),
        pytest.param((), 0, ("--nproc-per-node", "2", "--compile"), id="compiled", marks=[pytest.mark.slow, COMPILER]),
    ],
)
def test_two_halves_are_a_whole(
    program: Any, data: Path, alone: Path, tmp_path: Path, launcher: Any, ranks: int, options: Any
) -> None:
    command = ("-m", "mnist_nn.ddp", "--data", data, "--results", tmp_path, "--epochs", "2", "--batch-size", "64")
    done = program(*launcher, *command, *options, ranks=ranks)
    assert losses(tmp_path) == pytest.approx(losses(alone), rel=1e-4)
    (row,) = rows(tmp_path)
    assert (row["nodes"], row["devices"], row["batch"], row["epochs"]) == ("1", "2", "64", "2")
    said = done.stdout.splitlines()
    assert len(said) == 4 and said[3].startswith("1 node, 2 cpu processes, batch 64 each, 2 epochs: ")


@pytest.mark.xdist_group("ddp alone")
def test_logging_and_evaluation_can_be_asked_for_otherwise(data: Path, alone: Path, tmp_path: Path) -> None:
    command = ["--data", str(data), "--results", str(tmp_path), "--epochs", "2", "--batch-size", "128"]
    log = tmp_path / "steps.jsonl"
    given = ["--log-path", str(log), "--log-interval", "1", "--test-batch-size", "7"]
    assert main([*command, *given]) == Exit.DONE
    steps = [(line["epoch"], line["step"]) for line in map(json.loads, log.read_text().splitlines()) if "step" in line]
    assert steps == [(epoch, step) for epoch in (1, 2) for step in (1, 2, 3)], "300 images"
    assert not (tmp_path / "log.jsonl").exists()
    (found,), (expected,) = rows(tmp_path), rows(alone)
    assert float(found["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-5)


def test_another_seed_is_another_training_and_without_momentum_it_continues_too(data: Path, tmp_path: Path) -> None:
    command = ["--data", str(data), "--momentum", "0", "--batch-size", "128"]

    def trained(folder: str, seed: int, epochs: int, *more: str) -> list[float]:
        given = ["--results", str(tmp_path / folder), "--seed", str(seed), "--epochs", str(epochs), *more]
        assert main([*command, *given]) == Exit.DONE
        return losses(tmp_path / folder)

    whole = trained("a", 1, 2)
    trained("b", 1, 1)
    assert trained("b", 1, 2, "--resume") == whole
    assert trained("c", 2, 2) != whole


# What is kept


def test_a_resumed_training_is_the_uninterrupted_one(data: Path, tmp_path: Path) -> None:
    command = ["--data", str(data), "--batch-size", "50", "--save-model", "--results"]
    assert main([*command, str(tmp_path / "a"), "--epochs", "3"]) == Exit.DONE
    assert main([*command, str(tmp_path / "b"), "--epochs", "1"]) == Exit.DONE
    assert main([*command, str(tmp_path / "b"), "--epochs", "3", "--resume"]) == Exit.DONE
    one, two = (torch.load(tmp_path / name / "model.pt", weights_only=True)["weights"] for name in "ab")
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert [row["epochs"] for row in rows(tmp_path / "b")] == ["1", "3"]
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.slow
def test_shares_of_the_weights_are_resumed_too(program: Any, data: Path, tmp_path: Path) -> None:
    """With fsdp, a learning rate that grows with the processes, bf16, and Fashion-MNIST."""
    (tmp_path / "FashionMNIST").symlink_to(data / "MNIST")
    fashion = ("--dataset", "fashion-mnist", "--data", tmp_path, "--nproc-per-node", "2", "--strategy", "fsdp")
    command = ("-m", "mnist_nn.ddp", *fashion, "--scale-lr", "--amp", "bf16", "--save-model", "--results")
    program(*command, tmp_path / "a", "--epochs", "2")
    program(*command, tmp_path / "b", "--epochs", "1")
    program(*command, tmp_path / "b", "--epochs", "2", "--resume")
    one, two = (torch.load(tmp_path / name / "model.pt", weights_only=True)["weights"] for name in "ab")
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=1e-3 * float(one[name].abs().max()))
    assert losses(tmp_path / "b") == pytest.approx(losses(tmp_path / "a"), rel=1e-3)
    assert [(row["lr"], row["strategy"], row["dataset"], row["amp"]) for row in rows(tmp_path / "b")] == [
        ("0.02", "fsdp", "fashion-mnist", "bf16")
    ] * 2


def test_what_cannot_be_resumed_is_refused(data: Path, tmp_path: Path, capsys: Any) -> None:
    command = ["--data", str(data), "--results", str(tmp_path), "--epochs", "1"]
    assert main(command) == Exit.DONE
    assert main([*command, "--resume", "--batch-size", "32"]) == Exit.USAGE
    assert "has batch-size = 64, this command 32" in capsys.readouterr().err
    path = tmp_path / "checkpoint.pt"
    whole = path.read_bytes()
    marker = tmp_path / "ran"
    for content in (whole[:-100], pickle.dumps(Touch(str(marker)))):
        path.write_bytes(content)
        assert main([*command, "--resume"]) == Exit.USAGE
        assert capsys.readouterr().err.endswith("is not a checkpoint of this program: train again, without --resume\n")
    assert not marker.exists()


class Touch:
    """What would write a file if it were unpickled without care."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def search(folder: Path, losses: list[list[float]]) -> None:
    """The journal of a search with these losses of each parameter set's folds."""
    header = {"settings": {"experiment": "mnist_nn", "folds": 2}, "versions": {}, "commit": None, "command": []}
    outcomes = []
    for tuning, folds in enumerate(losses):
        for fold, loss in enumerate(folds):
            params = {
                "bootstrap": 0, "tuning": tuning, "n_conv_layer": 3 + tuning, "kernel_size": 3, "n_hidden_layer": 8,
                "learning_rate": 0.02, "momentum": 0.1, "fold": fold,
            }  # fmt: skip
            key = f"b0/t{tuning}/f{fold}"
            outcomes.append((Trial(key, params), Result(key, {"loss": loss})))
    with closing(Journal(folder, header)) as journal:
        journal.append(outcomes)


def test_the_best_network_of_a_search_is_trained(tmp_path: Path) -> None:
    """The third set is better on one fold, whose other one is not known; the fourth one diverged there."""
    search(tmp_path / "search", [[0.9, 0.9], [0.5, 0.6], [0.1], [0.1, float("inf")]])
    command = ("--dataset", "digits", "--from", str(tmp_path / "search"), "--epochs", "2", "--save-model")
    assert main([*command, "--results", str(tmp_path / "r")]) == Exit.DONE
    model = load_model(tmp_path / "r" / "model.pt")  # so mnist_nn.predict's own reader takes it
    assert model.params["n_conv_layer"] == 4 and model.params["learning_rate"] == 0.02
    (row,) = rows(tmp_path / "r")
    assert row["network"] == "search" and row["lr"] == "0.02" and float(row["accuracy"]) > 0.2


def test_where_there_is_no_best_network_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no search"):
        best_of(tmp_path)
    search(tmp_path, [[0.1], [0.2, float("inf")]])
    with pytest.raises(UsageError, match="no parameter set with a finite loss on every fold"):
        best_of(tmp_path)


# What cannot work


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--backend nccl --no-cuda", "--backend nccl needs GPUs: --no-cuda leaves none: give --backend gloo"),
        pytest.param(
            "--backend nccl",
            f"--backend nccl needs GPUs: PyTorch {torch.__version__} sees no GPU: give --backend gloo",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
        (
            "--dataset digits",
            "--dataset digits does not fit the network: the Kubeflow network needs images of",
        ),
        ("--network search", "--network search needs --from RESULTS"),
        ("--network kubeflow --from x", "name two networks"),
        ("--data nowhere-to-be-found/x --results r --from no-such", "no-such holds no search"),
        ("--batch-size 0", "0 is too small"),
        ("--compile", "--compile needs a C++ compiler and finds no no-such-compiler: install it, or name another in"),
        ("--lr 1e30", "the loss is not finite in step"),
    ],
)
def test_a_command_that_cannot_work_ends_in_one_line(
    data: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, options: str, text: str
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    if "mpi" in options and torch.distributed.is_mpi_available():
        pytest.skip("this PyTorch has MPI")
    words = options.replace("nowhere-to-be-found/x", str(data)).split()
    given = [] if "--data" in words else ["--data", str(data)]
    status = main([*words, *given, "--epochs", "1", *([] if "--results" in words else ["--results", str(tmp_path)])])
    said = capsys.readouterr().err
    assert status == (Exit.ERROR if "--lr" in words else Exit.USAGE) and text in said and said.count("\n") == 1


def test_a_taken_port_is_named(data: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": 0, "WORLD_SIZE": 2}.items():
            monkeypatch.setenv(name, str(value))
        assert main(["--data", str(data)]) == Exit.USAGE
    said = capsys.readouterr().err
    assert f"rank 0 at 127.0.0.1:{port} cannot listen" in said and said.count("\n") == 1


# Who launched us

SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3"}
NODES = {"SLURM_STEP_NODELIST": "gpu[08-11,20],login"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "2", "PMIX_NAMESPACE": "prte-1@1"}
HERE = {"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}
TORCH = {"RANK": "2", "WORLD_SIZE": "3"}
MASTER = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}


@pytest.mark.parametrize(
    ("environ", "who", "address"),
    [
        ({}, LaunchInfo("", 0, 1), Address("127.0.0.1", 0)),
        ({**TORCH, **MASTER}, LaunchInfo("torch", 2, 3), Address("job-master-0", 23456)),
        ({**TORCH, **MASTER, **SLURM}, LaunchInfo("torch", 2, 3), Address("job-master-0", 23456)),
        ({**SLURM, **NODES}, LaunchInfo("srun", 2, 3), Address("gpu08", derived_port("7.0"))),
        ({**SLURM, **NODES, **MASTER}, LaunchInfo("srun", 2, 3), Address("job-master-0", 23456)),
        (OPEN_MPI, LaunchInfo("mpirun", 2, 3), None),
        ({**OPEN_MPI, **MASTER}, LaunchInfo("mpirun", 2, 3), Address("job-master-0", 23456)),
        ({**OPEN_MPI, **HERE}, LaunchInfo("mpirun", 2, 3), Address("127.0.0.1", derived_port("prte-1@1"))),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, LaunchInfo("mpiexec", 1, 2), None),
        ({"RANK": "3", "WORLD_SIZE": "3"}, LaunchInfo("", 0, 1), Address("127.0.0.1", 0)),
    ],
    ids=["shell", "torchrun", "torchrun in srun", "srun", "srun, told", "mpirun", "mpirun, told", "mpirun here",
         "mpiexec", "nonsense"],
)  # fmt: skip
def test_the_environment_says_who_and_where(environ: dict[str, str], who: LaunchInfo, address: Address | None) -> None:
    assert launch_info(environ) == who
    assert known_address(who, environ) == address


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n1", "n1"), ("n1,n2", "n1"), ("n[1-3]", "n1"), ("a[08-11,13],b[1,2]", "a08"), ("a,b[1-2]", "a")],
)  # fmt: skip
def test_the_first_of_slurms_nodes(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


@pytest.mark.slow
def test_threads_wait_asleep(tmp_path: Path) -> None:
    """OpenMP says what it has read; what the user has set is left as it is."""
    environ = {**os.environ, "OMP_DISPLAY_ENV": "true"}
    environ.pop("OMP_WAIT_POLICY", None)
    for given, policy in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        command = [sys.executable, "-m", "mnist_nn.ddp", "--backend", "nccl", "--no-cuda"]
        done = subprocess.run(command, cwd=ROOT, env={**environ, **given}, capture_output=True, text=True)
        assert done.returncode == Exit.USAGE
        if "OMP_WAIT_POLICY" not in done.stderr:
            pytest.skip("this PyTorch's OpenMP does not tell")
        assert f"OMP_WAIT_POLICY = '{policy}'" in done.stderr


# Which GPUs


@pytest.mark.parametrize(
    ("hosts", "gpus", "counts", "problem"),
    [
        (["a"], ["xy"], [2], ""),
        (["a"], ["x"], [2], "on a: 2 processes would share 1 GPU"),
        (["a", "a"], ["x", "x"], [1, 1], "on a: 2 processes would share 1 GPU"),
        (["a", "a"], ["x", "y"], [1, 1], ""),
        (["a", "a"], ["xy", "xy"], [1, 1], ""),
        (["a", "b"], ["x", "x"], [1, 1], ""),
        (["b", "a", "a", "a"], ["x", "xy", "xy", "xy"], [1, 1, 1, 1], "on a: 3 processes would share 2 GPU"),
        (["a"], [""], [3], ""),
    ],
    ids=["one each", "too many asked for", "mpirun on a GPU", "srun", "torchrun", "two hosts", "three on two", "CPUs"],
)  # fmt: skip
def test_no_two_processes_have_one_gpu(hosts: list[str], gpus: list[str], counts: list[int], problem: str) -> None:
    """A letter is a GPU."""
    if not problem:
        refuse_two_on_a_gpu(hosts, [list(names) for names in gpus], counts)
    else:
        with pytest.raises(UsageError, match=problem):
            refuse_two_on_a_gpu(hosts, [list(names) for names in gpus], counts)


def test_gpus_that_torch_cannot_use_are_not_passed_over_in_silence(
    data: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mnist_nn.ddp.visible_gpus", lambda: ["0", "1"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    command = ["--data", str(data), "--results", str(tmp_path), "--epochs", "1", "--batch-size", "128"]
    assert main(command) == Exit.DONE
    assert rows(tmp_path)[0]["devices"] == "1"
    assert "has 2 GPUs, but PyTorch" in (said := capsys.readouterr().err) and "training on its CPU" in said
    assert main([*command, "--no-cuda"]) == Exit.DONE
    assert capsys.readouterr().err == ""


def test_compile_on_a_gpu_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(UsageError, match="--compile needs a C compiler .no-such-compiler.: install gcc"):
        check_machine(Settings(compile=True, backend="gloo"))


# A process that dies ends all


def start(arguments: list[str], **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mnist_nn.ddp", "--epochs", "100000", *arguments], cwd=ROOT, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for_an_epoch(folder: Path, *processes: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not (folder / "checkpoint.pt").exists():
        assert time.monotonic() < deadline and all(process.poll() is None for process in processes)
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """Processes that train: the command line of a spawned child says so; the resource tracker's does not."""
    found = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_node(data: Path, tmp_path: Path, victim: int) -> None:
    job = start(["--data", str(data), "--results", str(tmp_path), "--nproc-per-node", "2"])
    wait_for_an_epoch(tmp_path, job)
    ranks = children(job.pid)
    os.kill(ranks[victim], signal.SIGKILL)
    assert job.wait(ENDS_WITHIN_S) != 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)


def pods(arguments: list[str], *options: list[str]) -> list[subprocess.Popen[str]]:
    """A process for each of `options`, as the pods of a PyTorchJob: nobody ends them from outside."""
    port = free_port()
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(len(options))}
    return [start([*arguments, *more], RANK=str(rank), **where) for rank, more in enumerate(options)]


@pytest.mark.slow
def test_a_process_that_fails_at_its_start_ends_the_others(data: Path, tmp_path: Path) -> None:
    """Before the group stands: there a GPU that is taken shows, and the others wait for minutes."""
    port = free_port()
    fails = (
        "import sys, torch.distributed as dist\n"
        "def init(*_, **__): raise RuntimeError('CUDA-capable device(s) is/are busy or unavailable')\n"
        "from mnist_nn.ddp import main\n"
        "dist.init_process_group = init\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    both = [
        subprocess.Popen(
            [sys.executable, *how, "--data", str(data), "--results", str(tmp_path), "--epochs", "1"], cwd=ROOT,
            env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "RANK": str(rank)},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for rank, how in enumerate((["-m", "mnist_nn.ddp"], ["-c", fails]))
    ]  # fmt: skip
    try:
        _, said = both[0].communicate(timeout=PATIENCE)
        assert both[0].returncode == Exit.ERROR and "busy or unavailable" in said
    finally:
        for process in both:
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_a_node_that_cannot_take_part_is_named(data: Path, tmp_path: Path) -> None:
    first, second = pods(["--data", str(data), "--results", str(tmp_path), "--no-cuda"], [], ["--backend", "nccl"])
    _, said = first.communicate(timeout=PATIENCE)
    second.communicate(timeout=PATIENCE)
    assert first.returncode == Exit.USAGE and "--backend nccl needs GPUs: --no-cuda leaves none" in said


@pytest.mark.slow
def test_a_host_with_another_version_of_the_code_is_refused(data: Path, tmp_path: Path) -> None:
    """The second pod has an image of yesterday."""
    other = tmp_path / "other"
    for package in ("common", "jit", "kernel_svm", "mnist_nn"):
        shutil.copytree(ROOT / package, other / package, ignore=shutil.ignore_patterns("__pycache__"))
    with open(other / "mnist_nn" / "net.py", "a") as file:
        file.write("# of yesterday\n")
    for more, status in (([], Exit.USAGE), (["--allow-mixed-versions", "--epochs", "1"], Exit.DONE)):
        port = free_port()
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
        command = [sys.executable, "-m", "mnist_nn.ddp", "--data", str(data), "--results", str(tmp_path / "r"), *more]
        both = [
            subprocess.Popen(
                command, cwd=folder, env={**os.environ, **where, "RANK": str(rank), "PYTHONPATH": str(folder)},
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
            for rank, folder in enumerate((ROOT, other))
        ]  # fmt: skip
        said = [process.communicate(timeout=PATIENCE)[1] for process in both]
        assert both[0].returncode == status, said
        assert "hosts have different versions: code " in said[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "how"), [(1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP)],
    ids=["rank 1 killed", "rank 0 killed", "rank 1 silent"],
)  # fmt: skip
def test_without_a_launcher_the_others_notice(data: Path, tmp_path: Path, victim: int, how: signal.Signals) -> None:
    """A stopped process says nothing, and keeps its connections."""
    both = pods(["--data", str(data), "--results", str(tmp_path)], [], [])
    try:
        wait_for_an_epoch(tmp_path, *both)
        both[victim].send_signal(how)
        assert both[1 - victim].wait(ENDS_WITHIN_S) == Exit.ERROR
    finally:
        for pod in both:
            pod.kill()
            pod.communicate()
