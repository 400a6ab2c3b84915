"""What the commands of the READMEs meet in a test: programs that judge how they are called, and keep what they make.

Run as `commands.py NAME ARGUMENTS...` by scripts of that name. The folder HAS holds what exists
by now: images that were built or loaded, accounts, repositories. A call that could not work ends with a line that says
why, and status 1; one that is not understood with status 2. `python` parses the command line by the program's own
parser and makes the folder of results, nothing more; `kubectl --context` and `gcloud --quiet` are those of gke.sh
(tests/k8s/cloud.py).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HAS = Path(os.environ.get("HAS", "."))
# Options with a value, by program. Those of sbatch are taken as --name=value, as Slurm's manual writes them.
MPIRUN = {"--hostfile": 1, "--map-by": 1, "--bind-to": 1, "-n": 1, "-hosts": 1, "-ppn": 1}
SBATCH = {"--nodes", "--gpus-per-node", "--time", "--array", "--dependency", "--job-name", "--parsable"}
SRUN = {"--mpi", "--ntasks-per-node"}


class Wrong(Exception):
    """What a real program would answer with an error."""


def need(condition: object, why: str) -> None:
    if not condition:
        raise Wrong(why)


def mark(name: str) -> Path:
    return HAS / name.replace("/", "_")


def make(words: list[str]) -> None:
    subprocess.run(["/usr/bin/env", "make", "-n", *words], check=True, stdout=subprocess.DEVNULL, cwd=ROOT, env=REAL)


def pip(words: list[str]) -> None:
    need(words[0] == "install", "not an installation")
    if words[1] == "-r":
        need(Path(words[2]).is_file(), f"there is no {words[2]}")
    elif words[1:] == ["."]:
        need(Path("pyproject.toml").is_file(), "there is no project here")
    else:
        extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
        (extra,) = re.findall(r"^\.\[(\w+)\]$", words[1])
        need(extra in extras, f"there is no extra {extra}")


def python(words: list[str]) -> None:
    if words[0] == "-c":
        subprocess.run([sys.executable, *words], check=True)
        return
    need(words[0] == "-m", f"not a module: {words}")
    program, arguments = words[1], words[2:]
    if program == "mpitune":
        program, arguments = f"mpitune {arguments[0]}", arguments[1:]
    accepted(program, arguments)
    if program == "mpitune status":
        need(Path(arguments[0]).is_dir() or arguments[0].startswith("/results/"), f"{arguments[0]} holds no study")
    if program == "mpitune scaling":
        sources = arguments[: arguments.index("--into")]
        need(len(sources) > 1 and all(Path(source).is_dir() for source in sources), f"no results in {sources}")


def accepted(program: str, arguments: list[str]) -> None:
    """By the program's own parser. The folder of its results is there afterwards."""
    command = [sys.executable, "-m", "tests.programs", program, *arguments]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)
    need(done.returncode == 0, "the program does not take that")
    if done.stdout:
        Path(os.environ.get("RESULTS", done.stdout.strip()), "figures").mkdir(parents=True, exist_ok=True)


def after_options(words: list[str], known: dict[str, int]) -> list[str]:
    while words[0].startswith("-"):
        need(words[0] in known, f"unknown option {words[0]}")
        if words[0] == "--hostfile":
            need(Path(words[1]).read_text().strip(), "no hosts")
        words = words[1 + known[words[0]] :]
    return words


def mpirun(words: list[str]) -> None:
    if words == ["--version"]:
        print("mpirun (Open MPI) 5.0.8")
        return
    launched(after_options(words, MPIRUN))


def srun(words: list[str]) -> None:
    while words[0].startswith("-"):
        need(words[0].partition("=")[0] in SRUN, f"unknown option {words[0]}")
        words = words[1:]
    launched(words)


def launched(words: list[str]) -> None:
    """By the same stand-ins."""
    subprocess.run(words, check=True)


def sbatch(words: list[str]) -> None:
    given = {}
    while words[0].startswith("-"):
        name, _, value = words[0].partition("=")
        need(name in SBATCH and bool(value) == (name != "--parsable"), f"unknown option {words[0]}")
        given[name], words = value, words[1:]
    subprocess.run(["bash", "-n", words[0]], check=True)
    need(re.fullmatch(r"afterany:\d+|", given.get("--dependency", "")), "a dependency on no job")
    need(words[1] == "-m", "no program")
    accepted(words[2], words[3:])
    print("7" if "--parsable" in given else "Submitted batch job 7")


def apptainer(words: list[str]) -> None:
    if words == ["--version"]:
        print("apptainer version 1.3.4")
    elif words[0] == "build":
        target, definition = words[-2:]
        need(Path(definition).read_text().startswith("Bootstrap"), f"{definition} is no definition")
        Path(target).touch()
    else:
        need(words[:2] == ["run", "--nv"] and Path(words[2]).exists(), f"there is no image {words[2]}")
        python(words[3:])


def nvidia_smi(words: list[str]) -> None:
    print("| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4 |")


def scp(words: list[str]) -> None:
    host, _, path = words[1].partition(":search/")
    need(words[0] == "-r" and host and Path(path).is_dir() and Path(words[2]).is_dir(), f"there is no {words[1]}")


def docker(words: list[str]) -> None:
    if words[0] == "build":
        need(Path(words[words.index("-f") + 1]).is_file() and words[-1] == ".", "nothing to build from")
        target = words[words.index("--target") + 1]
        need(f" AS {target}\n" in Path(words[words.index("-f") + 1]).read_text(), f"there is no target {target}")
        mark("here-" + words[words.index("-t") + 1]).touch()
        return
    need(words[0] == "push" and mark(f"here-{words[1]}").exists(), f"no image {words[1]}")
    need(all(mark(name).exists() for name in ("login", "registry-login", "repository")), "denied")
    cloud("images", words[1])


def kind(words: list[str]) -> None:
    if words == ["create", "cluster"]:
        mark("cluster").touch()
        return
    need(words[:2] == ["load", "docker-image"], f"not understood: {words}")
    need(mark("cluster").exists() and mark(f"here-{words[2]}").exists(), f"no image {words[2]}")
    mark(f"node-{words[2]}").touch()


def gcloud(words: list[str]) -> None:
    call = " ".join(words)
    if words[0] == "--quiet":
        as_in_gke("gcloud", words)
    elif call == "auth login":
        mark("login").touch()
    elif call.startswith("--project mine services enable "):
        cloud("services", *words[4:])
    elif call.startswith(
        "--project mine artifacts repositories create search --repository-format docker --location us-c"
    ):
        need("artifactregistry.googleapis.com" in cloud("services"), "the API is not enabled")
        mark("repository").touch()
    elif call.startswith("--project mine artifacts repositories add-iam-policy-binding search "):
        need(mark("repository").exists() and "roles/artifactregistry.reader" in words, "no repository")
    elif call.startswith("--project mine storage buckets create gs://my-results --location us-central1 --uniform-buck"):
        need(mark("login").exists(), "no account")
        mark("bucket").touch()
    elif call.startswith("--project mine storage buckets add-iam-policy-binding gs://my-results "):
        need(
            mark("bucket").exists() and words[-2] == "--member" and words[-1].endswith("/ns/default/sa/files"),
            "no bucket",
        )
    elif call == "auth configure-docker us-central1-docker.pkg.dev":
        need(mark("login").exists(), "no account")
        mark("registry-login").touch()
    else:
        known = ("components install kubectl gke-gcloud-auth-plugin", "container clusters list", "compute disks list")
        need(call in known, f"not understood: {call}")


def kubectl(words: list[str]) -> None:
    if words[0] == "--context":
        as_in_gke("kubectl", words)
    elif words[0] == "kustomize":
        print(kustomized(words[1]), end="")
    elif words[:2] == ["apply", "--server-side"]:
        need(words[3].startswith("https://"), "no operator")
        mark("operator").touch()
    elif words[0] == "apply":
        text = kustomized(words[2]) if words[1] == "-k" else sys.stdin.read()
        if "kind: MPIJob" in text:
            need(mark("operator").exists(), 'no matches for kind "MPIJob"')
        for image in set(re.findall(r"image: (.*)", text)):
            registry = image.startswith("REGISTRY/")  # the user's own
            need(registry or mark(f"node-{image}").exists(), f"ErrImagePull {image}")
        for name in re.findall(r"^kind: (\w+)\nmetadata:\n(?:  .*\n)*?  name: ([\w-]+)", text, re.MULTILINE):
            mark("applied-" + "-".join(name).lower()).touch()
    elif words[0] == "delete":
        need(words[1] == "-f" or kustomized(words[2]), "nothing to delete")
    elif words[0] == "wait":
        for job in (word for word in words if "/" in word):
            need(mark(f"applied-{job.replace('/', '-')}").exists(), f"{job} not found")
    elif words[0] in ("logs", "exec", "cp"):
        need(mark("applied-pod-files").exists() and mark("applied-mpijob-svm").exists(), "not found")
        if words[0] == "exec":
            need(words[1:3] == ["files", "--"] and words[3] == "python", "not understood")
            python(words[4:])
    else:
        raise Wrong(f"not understood: {words}")


def kustomized(folder: str) -> str:
    command = [os.environ["KUSTOMIZE"], "kustomize", folder]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def cloud(what: str, *names: str) -> list[str]:
    """Names of the cloud's state, with these added."""
    path = Path(os.environ["CLOUD"], "state.json")
    state = json.loads(path.read_text())
    state[what] += names
    path.write_text(json.dumps(state))
    known: list[str] = state[what]
    return known


def as_in_gke(program: str, words: list[str]) -> None:
    module = str(ROOT / "tests" / "k8s" / "cloud.py")
    os.execv(sys.executable, [sys.executable, "-S", "-E", module, program, *words])


REAL = {**os.environ, "PATH": os.environ.get("REAL_PATH", "")}
COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "apptainer": apptainer, "docker": docker, "gcloud": gcloud, "gke-gcloud-auth-plugin": nvidia_smi, "kind": kind,
    "kubectl": kubectl, "make": make, "mpirun": mpirun, "nvidia-smi": nvidia_smi, "pip": pip, "python": python,
    "sbatch": sbatch, "scp": scp, "srun": srun,
}  # fmt: skip


def main() -> None:
    name, *words = sys.argv[1:]
    call = f"{name} {' '.join(words)}"
    try:
        COMMANDS[name](words)
    except Wrong as wrong:
        raise SystemExit(f"{call}: {wrong}") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(error.returncode) from None


if __name__ == "__main__":
    main()
