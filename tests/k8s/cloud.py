"""gcloud and kubectl as k8s/gke.sh meets them: a cloud whose state is a JSON file. It judges what it is asked.

Run under either name by the scripts that test_gke.py makes. What is not understood ends with status 2, as a wrong
option does. FAIL and HANG are patterns of calls that fail (TIMES times) or hang; what a failing call was to make exists
all the same, as a cluster does whose creation ended in an error.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("CLOUD", "."))
PROJECT, CLUSTER = os.environ.get("PROJECT", ""), os.environ.get("CLUSTER", "hyperparameter-search")
ROOT = Path(__file__).resolve().parent.parent.parent
QUOTA = "csv[no-heading](quotas.metric,quotas.limit,quotas.usage)"
POOL = f"{PROJECT}.svc.id.goog"
ADDONS = "HttpLoadBalancing,HorizontalPodAutoscaling,GcePersistentDiskCsiDriver,GcsFuseCsiDriver"
MACHINES = {"g2-standard-8": "8,32768", "n1-standard-4": "4,15360", "n1-standard-16": "16,61440"}
NEW: dict[str, Any] = {
    "services": ["container.googleapis.com", "compute.googleapis.com"],
    "images": ["us-docker.pkg.dev/test/search:gpu", "registry.io/search:gpu"],
    "quotas": {"NVIDIA_L4_GPUS": [8, 0], "GPUS_ALL_REGIONS": [8, 0], "PREEMPTIBLE_NVIDIA_L4_GPUS": [0, 0]},
    "buckets": ["my-results"],
    "networks": {"mtu9k": "8896"},
    "cluster": None, "network": False, "pool": None, "disks": {}, "credentials": False, "jobs": {}, "kinds": [],
}  # fmt: skip
# Kinds of Kubernetes itself by the names that kubectl takes; what an operator adds is in the state.
KINDS = {
    "pod": "pods", "job": "jobs", "deployment": "deployments", "pvc": "persistentvolumeclaims", "node": "nodes",
    "persistentvolume": "persistentvolumes", "service": "services", "crd": "customresourcedefinitions",
}  # fmt: skip
OPERATORS = {"mpi-operator": ["mpijobs"], "kubeflow/trainer": ["trainjobs"]}


class Wrong(Exception):
    """A call that the real program would refuse."""


def option(arguments: list[str], name: str) -> str:
    if name not in arguments:
        raise Wrong(f"{name} is missing")
    return arguments[arguments.index(name) + 1]


def gcloud(state: dict[str, Any], words: list[str]) -> str:
    if words[:3] != ["--quiet", "--project", PROJECT]:
        raise Wrong("another project")
    call, arguments = " ".join(words[3:]), words[3:]
    name = CLUSTER
    if call == "services list --enabled --format value(config.name)":
        return "\n".join(state["services"])
    if call.startswith("artifacts docker images describe "):
        if arguments[4] not in state["images"]:
            raise LookupError(f"Image not found: {arguments[4]}")
        return "sha256:1"
    if call.startswith(("compute project-info describe", "compute regions describe us-central1 ")):
        if option(arguments, "--flatten") != "quotas" or option(arguments, "--format") != QUOTA:
            raise Wrong("not a list of quotas")
        here = "project-info" not in call
        return "\n".join(
            f"{key},{limit:.1f},{used:.1f}"
            for key, (limit, used) in state["quotas"].items()
            if (key != "GPUS_ALL_REGIONS") == here
        )
    if call.startswith("storage buckets describe gs://"):
        if arguments[3].removeprefix("gs://") not in state["buckets"]:
            raise LookupError(f"{arguments[3]} not found: 404")
        return arguments[3]
    if call.startswith("compute machine-types describe "):
        if option(arguments, "--format") != "csv[no-heading](guestCpus,memoryMb)":
            raise Wrong("not what is asked")
        return MACHINES[arguments[3]]
    if call.startswith("compute networks describe "):
        if arguments[3] not in state["networks"]:
            raise LookupError(f"{arguments[3]} was not found")
        return state["networks"][arguments[3]]
    if call.startswith(f"compute networks create {name} "):
        state["network"] = True
    elif call.startswith(f"container clusters create {name} "):
        if not state["network"] and option(arguments, "--network") not in state["networks"]:
            raise LookupError("no such network")
        fuse = "--addons" in arguments
        if fuse and (option(arguments, "--workload-pool"), option(arguments, "--addons")) != (POOL, ADDONS):
            raise Wrong("a bucket needs the pool; and --addons switches off those that are not named")
        state["cluster"] = {"cost": "--enable-cost-allocation" in arguments, "fuse": fuse}
    elif call.startswith("container node-pools create workers "):
        if not state["cluster"] or not re.fullmatch(r"\d+s", option(arguments, "--max-run-duration")):
            raise Wrong("no cluster, or nodes without an end")
        given = option(arguments, "--accelerator") if "--accelerator" in arguments else "type=none,count=0,"
        kind, count, _ = given.split(",")
        state["pool"] = [kind.split("=")[1], int(count.split("=")[1]), 0]
        grown(state, arguments)
    elif call.startswith(f"container clusters resize {name} --zone us-central1-a --node-pool workers "):
        grown(state, arguments)
    elif call.startswith(f"container clusters get-credentials {name} "):
        state["credentials"] = bool(state["cluster"])
    elif call.startswith("container clusters list "):
        expected = f"name={name} AND location=us-central1-a"
        return name if state["cluster"] and option(arguments, "--filter") == expected else ""
    elif call.startswith("compute networks list "):
        return name if state["network"] and option(arguments, "--filter") == f"name={name}" else ""
    elif call.startswith("compute disks list "):
        return "\n".join(
            disk for disk, has in state["disks"].items() if matches(disk, has, option(arguments, "--filter"))
        )
    elif call.startswith(f"container clusters delete {name}"):
        state["cluster"] = state["pool"] = None
    elif call.startswith("compute disks delete "):
        del state["disks"][arguments[3]]
    elif call.startswith(f"compute networks delete {name}"):
        state["network"] = False
    else:
        raise Wrong(call)
    return ""


def grown(state: dict[str, Any], arguments: list[str]) -> None:
    """The GPU pool gets so many nodes, as far as the quota goes."""
    _, count, _ = state["pool"]
    n = int(option(arguments, "--num-nodes"))
    limit, used = state["quotas"].get("NVIDIA_L4_GPUS", [n * count, 0])
    if n * count > limit - used:
        short = f"request requires '{n * count}.0' and is short '{n * count - limit + used}.0'"
        raise LookupError(f'code=403, message=Insufficient regional quota: resource "NVIDIA_L4_GPUS": {short}.')
    state["pool"][2] = n


def matches(disk: str, labels: list[str], condition: str) -> bool:
    """gcloud's filter, as far as gke.sh uses it: a label, or one of several names."""
    for part in condition.split(" OR "):
        if match := re.fullmatch(r"labels\.([\w-]+)=([\w-]+)", part):
            if f"{match[1]}={match[2]}" in labels:
                return True
        elif match := re.fullmatch(r"name=\(([\w -]+)\)", part):
            if disk in match[1].split():
                return True
        else:
            raise Wrong(f"filter {part}")
    return False


def kubectl(state: dict[str, Any], words: list[str]) -> str:
    if words[:2] != ["--context", f"gke_{PROJECT}_us-central1-a_{CLUSTER}"] or not state["credentials"]:
        raise Wrong("another cluster, or no credentials")
    arguments = words[2:]
    if arguments[0] == "--request-timeout":
        arguments = arguments[2:]
    if arguments[0] == "--namespace":
        arguments = arguments[2:]
    if not state["cluster"]:
        raise LookupError("Unable to connect to the server")
    call = " ".join(arguments)
    kinds = resources(state, arguments)
    if arguments[0] == "apply" and "--server-side" in arguments:
        state["kinds"] += next(found for name, found in OPERATORS.items() if name in call)
    elif arguments[0] == "apply" and "-k" in arguments:
        label = option(arguments, "-l").replace("=", ": ") if "-l" in arguments else ""
        applied(state, option(arguments, "-k"), label, "--dry-run=server" in arguments)
    elif call.startswith("get pods -l app in (files,nfs) "):
        image = os.environ["IMAGE"]
        return "true \ntrue " if image in state["images"] else "false ContainerCreating\nfalse ImagePullBackOff"
    elif call.startswith("get persistentvolumes "):
        return " ".join(f"projects/{PROJECT}/zones/us-central1-a/disks/{disk}" for disk in state["disks"])
    elif call.startswith("get service nfs "):
        return "10.1.2.3"
    elif call.startswith("get nodes "):
        kind, count, n = state["pool"] or ["", 0, 0]
        return " ".join([str(count)] * n) if option(arguments, "-l").endswith(f"={kind}") else ""
    elif call.startswith("exec files --container copies -- "):
        if not state["cluster"]["fuse"]:
            raise Wrong("there is no such container")
        mapped = [f"{FOLDER}{word}" if word.startswith("/") else word for word in arguments[5:]]
        raise SystemExit(subprocess.run(mapped).returncode)
    elif call.startswith("exec files -- test -e /results/"):
        raise SystemExit(not Path(f"{FOLDER}{arguments[-1]}").exists())
    elif call.startswith("exec files -- python "):
        mapped = [str(FOLDER) + word if word.startswith("/results") else word for word in arguments[4:]]
        done = subprocess.run([sys.executable, *mapped], cwd=ROOT, capture_output=True, text=True)
        print(done.stderr, end="", file=sys.stderr)
        print(done.stdout, end="")
        raise SystemExit(done.returncode)
    elif call.startswith(("get job/", "get trainjob/")):
        name = arguments[1].split("/")[1].removesuffix("-launcher")
        # What becomes of the job, one word for each time it is submitted; at first it runs.
        asked = state["jobs"][name]
        asked[1] += 1
        ends = os.environ["ENDS"].split()
        return "" if asked[1] < 2 else ends[min(asked[0], len(ends)) - 1].replace("/", " ") + " "
    elif arguments[0] == "cp":
        copied(arguments[1], arguments[2])
    elif kinds == ["customresourcedefinitions"]:
        there = [name for name in arguments if name.partition(".")[0] in state["kinds"]]
        return "\n".join(f"customresourcedefinition.apiextensions.k8s.io/{name}" for name in there)
    elif arguments[0] == "delete" and "persistentvolumeclaims" in kinds:
        # A claim that a pod has stays, and a pod of a job is made again.
        if not {"pods", "jobs", "deployments", *state["kinds"]} <= set(kinds):
            raise LookupError("timed out waiting for the condition on persistentvolumeclaims/results")
        state["disks"] = {} if not os.environ["KEEP_DISKS"] else state["disks"]
    elif arguments[:3] == ["wait", "--for", "delete"]:
        if "persistentvolume/" in arguments:
            raise LookupError("arguments in resource/name form must have a single resource and name")
        if left := [word for word in arguments if word.removeprefix("persistentvolume/") in state["disks"]]:
            raise LookupError(f"timed out waiting for the condition on {left[0]}")
    elif arguments[0] == "logs":
        progress = FOLDER / "progress"
        if progress.exists():  # the search of this cluster: what it writes while its log is read
            subprocess.run(["sh", "-c", progress.read_text()], check=True)
    elif arguments[0] not in ("apply", "rollout", "wait", "delete"):
        raise Wrong(call)
    return ""


def resources(state: dict[str, Any], arguments: list[str]) -> list[str]:
    """The kinds that a call is about. As by an API server, one that it does not know ends the whole call."""
    if arguments[0] not in ("get", "delete"):
        return []
    found = []
    for word in arguments[1].split("/")[0].split(","):
        name = KINDS.get(word, word).partition(".")[0]
        plural = name if name.endswith("s") else f"{name}s"
        if plural not in (*KINDS.values(), *state["kinds"]):
            raise LookupError(f'the server doesn\'t have a resource type "{word}"')
        found.append(plural)
    return found


def applied(state: dict[str, Any], folder: str, label: str, only_asked: bool) -> None:
    real = os.environ["KUSTOMIZE"]
    if real and "//" not in folder and "github.com" not in folder:
        done = subprocess.run([real, "kustomize", folder], capture_output=True, text=True)
        if done.returncode:
            raise Wrong(done.stderr)
        made = [one for one in done.stdout.split("---\n") if label in one]
        text = "---\n".join(made)
        before = list(FOLDER.glob("applied-*"))
        (FOLDER / f"applied-{len(before)}").write_text(text)
        volumes = {one for one in made if "kind: PersistentVolume\n" in one}
        for earlier in before:
            there = {one for one in earlier.read_text().split("---\n") if "kind: PersistentVolume\n" in one}
            if there and volumes and there != volumes:
                raise LookupError("spec.persistentvolumesource is immutable after creation")
        mounts = "driver: gcsfuse.csi.storage.gke.io" in text
        if mounts and not (state["cluster"]["fuse"] and 'gke-gcsfuse/volumes: "true"' in text):
            raise Wrong("nobody mounts the bucket")
        if "name: nfs-disk" in text:
            labels = [f"goog-k8s-cluster-name={CLUSTER}"] if state["cluster"]["cost"] else []
            state["disks"]["pvc-1"] = labels
    name = os.environ["SEARCH"]
    text = (Path(folder) / "kustomization.yaml").read_text() if Path(folder).exists() else ""
    if not only_asked and "components/gke]" in text:
        state["jobs"][name] = [state["jobs"].get(name, [0])[0] + 1, 0]


def copied(source: str, target: str) -> None:
    if source.startswith("files:"):
        shutil.copytree(f"{FOLDER}{source.removeprefix('files:')}", target)
    else:  # into the folder, as kubectl does where it exists
        into = Path(f"{FOLDER}{target.removeprefix('files:')}", Path(source).name)
        shutil.copytree(source, into, dirs_exist_ok=True)


def main() -> None:
    program, *words = sys.argv[1:]
    call = f"{program} {' '.join(words)}"
    with open(FOLDER / "calls", "a") as file:
        file.write(call + "\n")
    lock = os.open(FOLDER / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)  # a call that reads what another one changes would take that back
    path = FOLDER / "state.json"
    state = json.loads(path.read_text()) if path.exists() else NEW
    known: dict[str, Callable[[dict[str, Any], list[str]], str]] = {"gcloud": gcloud, "kubectl": kubectl}
    fails = bool(os.environ["FAIL"] and re.search(os.environ["FAIL"], call))
    if fails and os.environ["TIMES"]:
        calls = (FOLDER / "calls").read_text().splitlines()
        fails = sum(bool(re.search(os.environ["FAIL"], one)) for one in calls) <= int(os.environ["TIMES"])
    if fails and " delete " in call:
        raise SystemExit("ERROR: not deleted")
    try:
        answer = known[program](state, words)
    except Wrong as wrong:
        print(f"{program}: {wrong}", file=sys.stderr)
        raise SystemExit(2) from None
    except LookupError as missing:
        raise SystemExit(f"ERROR: {missing}") from None
    finally:
        whole = path.with_suffix(f".{os.getpid()}")  # a call may be interrupted
        whole.write_text(json.dumps(state))
        whole.rename(path)
        os.close(lock)
    if os.environ["HANG"] and re.search(os.environ["HANG"], call):
        time.sleep(600)  # longer than a test waits for the script
    if fails:
        raise SystemExit("ERROR: (gcloud) Quota 'NVIDIA_L4_GPUS' exceeded.")
    if answer:
        print(answer)


if __name__ == "__main__":
    main()
