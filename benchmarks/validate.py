"""Everything that a machine with a GPU can show about this package, in one command and within 20 minutes.

Without a GPU the steps that need one say so, and the others run.

    make test-gpu                       or: python -m mpitune doctor --validate
    python -m benchmarks.validate --folder DIR --minutes N

What each step prints is kept in one folder, with `summary.md`, which can be pasted into an issue as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.machine import circumstances, table
from mpitune.devices.devices import nvidia_smi, visible_gpus, why_no_gpu
from mpitune.errors import Exit

LAST_LINES, FAILED_LINES = 3, 10  # of a step that failed, in the summary: the last, and those that say FAILED
MINUTES = 19.0  # so that all of it, with the start and the summary, ends within 20
SVM = ("-m", "mnist_svm", "4", "--dataset", "digits", "--restart")
NN = ("-m", "mnist_nn", "1", "3", "--dataset", "digits", "--epochs", "3", "--max-channels", "32", "--seed", "3",
      "--restart")  # fmt: skip
DDP = ("-m", "mnist_nn.ddp", "--dataset", "digits", "--epochs", "1")
NO_GPU = "skipped: no GPU"
AGREE = 0.03  # a mean error of a fifth of the digits, on a GPU and on the CPU


@dataclass(frozen=True)
class Step:
    """One thing that is run. words: of the command; "python" is this one. limit_s: after which it is ended.

    on_gpu: it needs one.
    """

    name: str
    words: Sequence[str]
    limit_s: float
    environ: Mapping[str, str] = field(default_factory=dict)
    on_gpu: bool = False


@dataclass(frozen=True)
class Done:
    """found: "passed", "skipped: ...", or how it ended. words: the last lines of what it printed, where it failed."""

    step: Step
    found: str
    seconds: float
    words: str = ""


def steps(folder: Path) -> list[Step]:
    """In the order in which they tell most: what comes late may find no time."""
    sanitizer = shutil.which("compute-sanitizer")
    pytest = ["python", "-m", "pytest", "-p", "no:cacheprovider", "-v"]  # a step that is ended has named what failed
    parallel = [*pytest, "-n", "auto", "--maxprocesses", "8"]
    svm = ["python", *SVM, "--results", str(folder / "svm")]
    nn = ["python", *NN, "--results", str(folder / "nn")]
    doctor, agree = (
        ["python", "-m", "mpitune", "doctor", "--dataset", "digits"],
        ["python", "-m", "benchmarks.validate"],
    )
    ddp = ["python", *DDP, "--from", str(folder / "nn-cpu"), "--results", str(folder / "ddp")]
    variants = {"fsdp": ["--strategy", "fsdp"], "bf16": ["--amp", "bf16"], "compiled": ["--compile"]}
    return [
        Step("doctor", [*doctor, "--gpu", "all"] if visible_gpus() else doctor, 120),
        Step("self-checks", [*doctor, "--gpu", "all", "--self-check"], 420, on_gpu=True),
        Step("tests for a GPU", [*pytest, "-m", "gpu"], 300, on_gpu=True),
        Step("vector machines, GPU", [*svm, "--gpu", "0", "--solver", "cuml"], 240, on_gpu=True),
        Step("vector machines, CPU", [*_cpu(svm), "--solver", "shared"], 240),
        Step("vector machines agree", [*agree, "--agree", str(folder / "svm")], 60, on_gpu=True),
        Step("networks, GPU", [*nn, "--gpu", "0", "--step", "grouped"], 240, on_gpu=True),
        Step("networks, CPU", _cpu(nn), 240),
        Step("networks agree", [*agree, "--agree", str(folder / "nn")], 60, on_gpu=True),
        Step("data parallel, all devices", ddp, 120),
        Step("networks, two on a GPU", [*_into(nn, "two"), "--gpu", "0,0", "--step", "grouped"], 240, on_gpu=True),
        *(Step(f"data parallel, {name}", [*_into(ddp, name), *words], 180, on_gpu=True)
          for name, words in variants.items()),
        *([Step("addresses", [sanitizer, "--tool", "memcheck", *pytest, "-m", "gpu",
                              "tests/mnist_nn/test_triton_kernel.py"], 240, on_gpu=True)]
          if sanitizer else []),
        Step("rates of this device", [*doctor, "--benchmark"], 300),
        Step("rates of steps", ["python", "-m", "benchmarks.nn_step", "--sizes", "small", "medium"], 180, on_gpu=True),
        Step("tests of the self-checks", [*parallel, "-m", "slow", "tests/mnist_nn/test_selfcheck.py"], 420,
             {"CUDA_VISIBLE_DEVICES": ""}),
        Step("tests without a GPU", [*parallel, "-m", "not gpu and not slow and not cluster"], 900,
             {"CUDA_VISIBLE_DEVICES": ""}),
    ]  # fmt: skip


def _cpu(words: Sequence[str]) -> list[str]:
    return [*_into(words, "cpu"), "--gpu", "none", "--workers", "2"]


def _into(words: Sequence[str], name: str) -> list[str]:
    """The same command with results of its own; its last word is the folder."""
    return [*words[:-1], f"{words[-1]}-{name}"]


def run_all(every: Sequence[Step], folder: Path, seconds: float, gpu: bool = True) -> list[Done]:
    """Run steps one after the other until so many seconds are over. gpu: whether there is one."""
    end, found = time.monotonic() + seconds, []
    for number, step in enumerate(every):
        left = end - time.monotonic()
        if step.on_gpu and not gpu:
            found.append(Done(step, NO_GPU, 0.0))
            continue
        if left <= 0:
            found.append(Done(step, "no time was left", 0.0))
            continue
        print(f"{step.name} ...", flush=True)
        found.append(_run(step, folder / f"{number:02}-{step.name.replace(', ', '-').replace(' ', '-')}.txt", left))
        print(f"{step.name}: {found[-1].found}, {found[-1].seconds:.0f} s", flush=True)
    return found


def _run(step: Step, output: Path, left: float) -> Done:
    words = [sys.executable if word == "python" else word for word in step.words]
    limit, start = min(step.limit_s, left), time.monotonic()
    with open(output, "w") as file:
        file.write(" ".join(step.words) + "\n\n")
        file.flush()
        process = subprocess.Popen(
            words, env={**os.environ, **step.environ}, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            status = process.wait(limit)
            found = "passed" if status == 0 else f"status {status}"
        except subprocess.TimeoutExpired:
            found = f"not done within {limit:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)  # one whose GPU hangs may not end
    lines = [line for line in output.read_text(errors="replace").splitlines() if line.strip()]
    said = [line for line in lines[:-LAST_LINES] if "FAILED" in line][:FAILED_LINES] + lines[-LAST_LINES:]
    return Done(step, found, time.monotonic() - start, "" if found == "passed" else "\n".join(said))


def summary(found: Sequence[Done], facts: str) -> str:
    """What can be pasted into an issue, in Markdown."""
    rows = [{"step": done.step.name, "found": done.found, "seconds": f"{done.seconds:.0f}"} for done in found]
    words = [f"\n{done.step.name}:\n\n```\n{done.words}\n```" for done in found if done.words]
    return "\n".join([facts, "", table(rows), *words, ""])


def agree(folder: Path) -> str:
    """How the study in a folder differs from that in FOLDER-cpu, beyond rounding; "" if it does not."""
    errors = []
    for path in (folder, folder.with_name(folder.name + "-cpu")):
        lines = [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]
        errors.append({line["key"]: _error(line["values"]) for line in lines if "key" in line})
    there, here = errors
    keys = [key for key in there if key in here and None not in (there[key], here[key])]
    if not keys:
        return "the two studies have no result in common"
    worst = max(abs(there[key] - here[key]) for key in keys)
    mean = abs(sum(there[key] - here[key] for key in keys)) / len(keys)
    print(f"{len(keys)} results: the mean error differs by {mean:.2%}, one by {worst:.2%}")
    return f"the mean error differs by {mean:.2%}, more than {AGREE:.0%}" if mean > AGREE else ""


def _error(values: Mapping[str, float]) -> float | None:
    """The one of a result that is compared: a fraction of images, or a mean loss."""
    return next((values[name] for name in ("error", "loss", "test_error") if name in values), None)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validate", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, help="where everything is kept (default: results/validate-TIME)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"after which it ends (default {MINUTES:g})")
    parser.add_argument("--agree", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.agree is not None:
        problem = agree(given.agree)
        print(problem, file=sys.stderr)
        return Exit.ERROR if problem else Exit.DONE
    gpu = bool(visible_gpus())
    if not gpu:
        print(f"no GPU is visible{why_no_gpu()}: only what needs none is run", flush=True)
    folder = given.folder or Path("results") / time.strftime("validate-%Y%m%d-%H%M%S")
    folder.mkdir(parents=True, exist_ok=True)
    facts = circumstances("torch", "triton", "cupy", "cuml", "numpy")
    facts += "\n" + (nvidia_smi("--query-gpu=name,driver_version,memory.total", "--format=csv,noheader") or "").strip()
    found = run_all(steps(folder), folder, 60 * given.minutes, gpu)
    text = summary(found, facts)
    (folder / "summary.md").write_text(text)
    print(f"\n{text}\nall of it: {folder}")
    return Exit.DONE if all(done.found in ("passed", NO_GPU) for done in found) else Exit.ERROR


if __name__ == "__main__":
    sys.exit(main())
