"""Every overlay builds, is valid for a cluster's API, and asks for a command that the programs take."""

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mpitune.errors import Exit
from mpitune.settings import from_namespace
from mpitune.storage.history import read_journal
from tests.helpers import ROOT
from tests.k8s.manifests import (
    COMBINATIONS,
    MPIJOB_OVERLAYS,
    OVERLAYS,
    Manifest,
    environment,
    mpijobs,
    overlay,
    pod_specs,
    shown,
    yaml,
)
from tests.programs import EXPERIMENTS, accepted

pytestmark = pytest.mark.xdist_group("manifests")  # one process builds each overlay once

# Folders with operators' own definitions, one file for each kind as the operators name them. CRDS names more, such as
# config/components/crd/bases of a clone of kubernetes-sigs/kueue.
CRDS = [ROOT.parent / "shared" / "data" / "k8s", *map(Path, filter(None, os.environ.get("CRDS", "").split(":")))]
KUBERNETES = "1.32"
CORE = ("v1", "apps/v1", "batch/v1", "rbac.authorization.k8s.io/v1")

each_kustomization = pytest.mark.parametrize("name", [*OVERLAYS, *COMBINATIONS, "queue.yaml"])
each_mpijob_overlay = pytest.mark.parametrize("name", MPIJOB_OVERLAYS)


@each_kustomization
def test_core_kinds_are_valid(name: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for manifest in overlay(name):
        if manifest["apiVersion"] in CORE:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@each_kustomization
def test_other_kinds_are_valid(name: str) -> None:
    """Against the operators' own definitions, in every version that is here, where every field must be known."""
    for manifest in overlay(name):
        if manifest["apiVersion"] in CORE:
            continue
        for judge in judges_of(manifest["apiVersion"], manifest["kind"]):
            if "runtimePatches" in manifest["spec"] and "runtimePatches" not in str(judge.schema):
                pytest.skip("this definition of TrainJob is of an earlier version")
            judge.validate({k: v for k, v in manifest.items() if k != "metadata"})


def test_an_unknown_field_is_refused() -> None:
    """The check above can fail: also deep in the pod of a job."""
    jsonschema = pytest.importorskip("jsonschema", reason="pip install jsonschema")
    job = mpijobs("svm")["svm"]
    job = yaml.safe_load(yaml.safe_dump(job))
    container(job, "Worker")["resourcs"] = {}
    for judge in judges_of(job["apiVersion"], job["kind"]):
        with pytest.raises(jsonschema.ValidationError, match="resourcs"):
            judge.validate({k: v for k, v in job.items() if k != "metadata"})


@functools.cache
def judges_of(api_version: str, kind: str) -> list[Any]:
    """Validators by the operator's own definitions of that kind, in which every field must be known."""
    jsonschema = pytest.importorskip("jsonschema", reason="pip install jsonschema")
    group, version = api_version.split("/")
    paths = [path for folder in CRDS if (path := folder / f"{group}_{kind.lower()}s.yaml").exists()]
    if not paths:
        pytest.skip(f"no definition of {kind} in {CRDS[0]}; CRDS may name other folders")
    judges = []
    for path in paths:
        definition = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        (found,) = [one for one in definition["spec"]["versions"] if one["name"] == version and one["served"]]
        schema = strict(found["schema"]["openAPIV3Schema"])
        del schema["properties"]["metadata"]
        kind_of_judge = jsonschema.validators.validator_for(schema)
        kind_of_judge.check_schema(schema)
        judges.append(kind_of_judge(schema))
    return judges


def strict(schema: Any) -> Any:
    """JSON schema of a CRD's openAPIV3Schema, in which an object has no fields but those listed."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes") and key != "nullable"}
    for key in ("items", "not", "additionalProperties", "anyOf", "allOf", "oneOf"):
        if key in out:
            out[key] = strict(out[key])
    if "properties" in out:
        out["properties"] = {name: strict(part) for name, part in out["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            out.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
    if schema.get("nullable") and isinstance(out.get("type"), str):
        out["type"] = [out["type"], "null"]
    return out


@each_mpijob_overlay
def test_a_launcher_may_do_what_it_does_and_nobody_else_may(name: str) -> None:
    """Its account, which the Role binds, may delete pods and end its own Job; workers have no token."""
    kinds = {(one["kind"], one["metadata"]["name"]): one for one in overlay(name)}
    for job in mpijobs(name).values():
        account = f"{job['metadata']['name']}-launcher"  # the operator names the Job so
        replicas = {role: spec["template"]["spec"] for role, spec in job["spec"]["mpiReplicaSpecs"].items()}
        assert replicas["Launcher"]["serviceAccountName"] == account and ("ServiceAccount", account) in kinds
        assert replicas["Worker"]["automountServiceAccountToken"] is False
        binding = kinds["RoleBinding", account]
        assert binding["roleRef"]["name"] == account
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account}]
        pods, jobs = kinds["Role", account]["rules"]
        assert pods["resources"] == ["pods"] and pods["verbs"] == ["deletecollection"]
        assert jobs["resourceNames"] == [account] and jobs["verbs"] == ["patch"]


@each_mpijob_overlay
def test_the_program_takes_the_command(name: str, tmp_path: Path) -> None:
    """As the shell would split it, by the program's own parser."""
    searches = set()
    for job in mpijobs(name).values():
        env = environment(container(job, "Launcher"))
        program, *arguments = env["SEARCH"].split()
        accepted(program, [*arguments, "--data", "/data", "--results", env["RESULTS"], *env["OPTIONS"].split()])
        searches.add(program)
    assert searches == {"svm": {"mnist_svm"}, "nn": {"mnist_nn"}}.get(name.split()[0], set(EXPERIMENTS))


def start_pod(manifest: Manifest, index: int, **settings: str) -> "subprocess.Popen[str]":
    """Start a Job's container here by its own command, on the built-in digits."""
    (container,) = pod_specs(manifest)[0]["containers"]
    environ = {
        **os.environ, **environment(container), "OPTIONS": "--dataset digits --gpu none --workers 1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "JOB_COMPLETION_INDEX": str(index), **settings,
    }  # fmt: skip
    command = [*container["command"], *container["args"]]
    return subprocess.Popen(command, env=environ, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)


def action_on(manifest: Manifest, status: int) -> str:
    """What the Job does when a container has ended with this status."""
    rules = manifest["spec"]["podFailurePolicy"]["rules"]
    found = (rule["action"] for rule in rules if status in rule.get("onExitCodes", {}).get("values", ()))
    return next(found, "Count")


@pytest.mark.slow
def test_only_what_another_attempt_may_mend_is_tried_again(tmp_path: Path) -> None:
    """A mistake in the command is not, and failed trials are no failure of a pod."""
    (job,) = overlay("join")
    assert job["spec"]["successPolicy"] == {"rules": [{"succeededCount": 1}]} and "maxFailedIndexes" not in job["spec"]
    wrong = start_pod(job, 0, SEARCH="mnist_svm no-number", RESULTS=str(tmp_path / "none"))
    assert "no-number" in wrong.communicate()[1] and wrong.returncode == Exit.USAGE
    assert action_on(job, Exit.USAGE) == action_on(job, Exit.ERROR) == "FailIndex" and not (tmp_path / "none").exists()
    assert action_on(job, Exit.STOPPED) == "Ignore" and action_on(job, -signal.SIGKILL % 256) == "Count"
    folder, search, options = tmp_path / "nn", "mnist_nn 1 1 --plot 1 --epochs 100000", "--dataset digits --gpu none"
    command = [sys.executable, "-m", *search.split(), *options.split(), "--trial-timeout", "0.2", "--results", folder]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == Exit.FAILED_TRIALS
    pod = start_pod(job, 0, SEARCH=search, OPTIONS=options, RESULTS=str(folder))
    said = pod.communicate()[1]
    assert pod.returncode == 0 and len(list(folder.glob("jobs/*/journal.jsonl"))) == 1, said


def container(job: Manifest, role: str) -> Manifest:
    (one,) = job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]["containers"]
    found: Manifest = one
    return found


@each_kustomization
def test_pods_are_unprivileged_bounded_and_whole(name: str) -> None:
    """Memory is limited, nothing runs as root, and each mount has its volume; the NFS server is the one exception."""
    claims = {one["metadata"]["name"] for one in overlay("storage") if one["kind"].endswith("Claim")}
    assert claims == {"results", "data"}
    for manifest in overlay(name):
        for pod in pod_specs(manifest):
            claimed = {one.get("persistentVolumeClaim", {}).get("claimName") for one in pod.get("volumes", [])}
            assert claimed <= claims | {"nfs-disk", None}
            volumes = {volume["name"] for volume in pod.get("volumes", [])}
            for one in pod["containers"] + pod.get("initContainers", []):
                assert {mount["name"] for mount in one.get("volumeMounts", [])} <= volumes
                assert "privileged" not in one.get("securityContext", {})
            if manifest["metadata"]["name"] == "nfs":
                assert all(one["securityContext"]["capabilities"]["drop"] == ["ALL"] for one in pod["containers"])
                continue
            security = pod["securityContext"]
            assert security["runAsNonRoot"] and security["runAsUser"] == security["fsGroup"] == 1000
            for one in pod["containers"]:
                assert one["securityContext"]["allowPrivilegeEscalation"] is False
                assert "memory" in one["resources"]["limits"] and "memory" in one["resources"]["requests"]


def test_what_each_place_changes() -> None:
    """What the program's and the operators' own checks cannot see."""
    for job in mpijobs("svm").values():
        assert job["spec"]["slotsPerWorker"] == 1 and job["spec"]["launcherCreationPolicy"] == "WaitForWorkersReady"
        assert "nvidia.com/gpu" not in str(container(job, "Launcher")["resources"])
    for job in mpijobs("cpu").values():
        assert "nvidia.com/gpu" not in str(job)
    nfs = {(one["kind"], one["metadata"]["name"]): one["spec"] for one in overlay("nfs")}
    for name in ("results", "data"):
        claim, volume = nfs["PersistentVolumeClaim", name], nfs["PersistentVolume", name]
        assert claim["volumeName"] == name and claim["storageClassName"] == ""
        assert claim["accessModes"] == volume["accessModes"] and claim["resources"]["requests"] == volume["capacity"]


def test_deleting_a_search_keeps_its_results() -> None:
    for name in [*OVERLAYS, *COMBINATIONS]:
        if name.split()[0] not in ("storage", "nfs", "cpu", "service"):
            assert not [one for one in overlay(name) if one["kind"] in ("PersistentVolumeClaim", "PersistentVolume")]


def test_the_data_parallel_jobs_ask_for_what_the_program_takes() -> None:
    from mnist_nn.parallel.settings import Settings
    from mpitune.settings import Parser, add_settings

    (job,) = overlay("ddp")
    asked = [spec["containers"][0]["args"] for spec in pod_specs(job)]
    assert all(words[:2] == ["-m", "mnist_nn.ddp"] for words in asked) and job["spec"]["nprocPerNode"] == "1"
    small = [spec["containers"][0]["args"] for spec in pod_specs(overlay("ddp cpu")[0])]
    trainjobs = [overlay(name)[0]["spec"]["trainer"]["args"] for name in ("trainjob", "trainjob cpu")]
    assert "nvidia" not in str(overlay("ddp cpu")) + str(overlay("trainjob cpu"))
    for arguments in [words[2:] for words in [*asked, *small]] + trainjobs:
        parser = Parser(prog="ddp")
        add_settings(parser, Settings)
        settings = from_namespace(Settings, parser.parse_args(arguments))
        # A pod that is made again goes on where the last checkpoint is, which outlives it.
        assert settings.resume and settings.results == Path("/results/ddp") and settings.data_folder == Path("/data")


@pytest.mark.parametrize(
    ("base", "kind"),
    [("svm", "MPIJob"), ("ddp", "PyTorchJob"), ("join", "Job"), ("join seeds", "Job"), ("trainjob", "TrainJob")],
)
def test_queue_and_gpu_nodes_are_for_every_kind_of_job(base: str, kind: str) -> None:
    """As show.sh combines them."""
    job = next(one for one in overlay(f"{base} kueue") if one["kind"] == kind)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "searches"
    assert job["spec"].get("runPolicy", job["spec"])["suspend"] is True
    gke, slices = "cloud.google.com/gke-accelerator", "cloud.google.com/gke-gpu-partition-size"
    for components, labels in (
        ("gke", {gke}), ("gke gke-mig", {gke, slices}), ("mig", {"nvidia.com/gpu.product"}),
    ):  # fmt: skip
        job = next(one for one in overlay(f"{base} {components}") if one["kind"] == kind)
        for pod in pod_specs(job):
            if "nvidia.com/gpu" in pod["containers"][0]["resources"]["limits"]:
                assert set(pod["nodeSelector"]) == labels
                tolerated = {one["key"] for one in pod.get("tolerations", [])}
                assert tolerated == ({"nvidia.com/gpu", "cloud.google.com/gke-spot"} if gke in labels else set())


@pytest.mark.parametrize("base", ["join", "join seeds"])
def test_pods_that_join_fit_spot_nodes_and_what_the_queue_has(base: str) -> None:
    """Trials have less time than the pod. Kueue refuses a least number that is not below the pods of the Job."""
    (job,) = overlay(f"{base} gke spot")
    (pod,) = pod_specs(job)
    assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    env = environment(pod["containers"][0])
    options = accepted(env["SEARCH"].split()[0], [*env["SEARCH"].split()[1:], *env["OPTIONS"].split()])
    assert options is not None and options.grace < 15 < pod["terminationGracePeriodSeconds"] == 25
    least = "kueue.x-k8s.io/job-min-parallelism"
    (job,) = overlay(f"{base} kueue")
    assert 0 < int(job["metadata"]["annotations"][least]) < job["spec"]["parallelism"]
    assert least not in str(overlay("storage kueue"))


def test_a_public_image_has_the_code_and_the_packages_in_volumes(tmp_path: Path) -> None:
    """The programs' own commands, limits of CPUs, and slices by the label that NVIDIA's operator gives."""
    from mnist_nn.parallel.settings import Settings
    from mpitune.settings import Parser, add_settings

    made = {one["metadata"]["name"]: one for one in overlay("service public")}
    for name in ("train", "seeds"):
        (pod,) = pod_specs(made[name])
        (main,), (first,) = pod["containers"], pod["initContainers"]
        assert main["workingDir"] == "/data/code" and main["image"] == first["image"] == "search"
        assert environment(main)["PYTHONUSERBASE"] == environment(first)["PYTHONUSERBASE"] == "/packages"
        assert {"/data", "/packages"} <= {mount["mountPath"] for mount in main["volumeMounts"]}
        assert {"cpu", "memory"} <= set(main["resources"]["limits"])
        assert pod["nodeSelector"]["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
    (train,) = pod_specs(made["train"])[0]["containers"]
    assert train["command"] == ["python", "-m", "mnist_nn.ddp"]
    parser = Parser(prog="ddp")
    add_settings(parser, Settings)
    settings = from_namespace(Settings, parser.parse_args(train["args"]))
    assert settings.save_model and settings.resume
    assert "--save-models" in environment(pod_specs(made["seeds"])[0]["containers"][0])["OPTIONS"]


def test_two_pods_of_two_gpus_are_on_one_node() -> None:
    trainer, spec = overlay("trainjob one-node")[0]["spec"]["trainer"], pod_specs(overlay("trainjob one-node")[0])[0]
    assert (
        trainer["numNodes"] == trainer["numProcPerNode"] == trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == 2
    )
    assert "kubernetes.io/hostname" in str(spec["affinity"]["podAffinity"])
    (job,) = overlay("ddp one-node")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert job["spec"]["nprocPerNode"] == "2"
    assert replicas["Master"]["replicas"] == replicas["Worker"]["replicas"] == 1
    for pod in pod_specs(job):
        assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 2
    # Workers are where the pod is to which the operator gives these labels; a master may be anywhere.
    (term,) = replicas["Worker"]["template"]["spec"]["affinity"]["podAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"]["training.kubeflow.org/replica-type"] == "master"
    assert "affinity" not in replicas["Master"]["template"]["spec"]


def test_data_is_loaded_through_the_queue_too_and_so_are_copies() -> None:
    made = overlay("storage kueue")
    (job,) = (one for one in made if one["kind"] == "Job")
    (pod,) = (one for one in made if one["kind"] == "Pod")
    assert job["spec"]["suspend"] is True
    for one in (job, pod):
        assert one["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "searches"


def test_copies_of_results_go_to_a_bucket() -> None:
    made = overlay("storage bucket")
    (pod,) = (one for one in made if one["kind"] == "Pod")
    pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate").validate(
        pod, KUBERNETES, strict=True
    )
    assert pod["metadata"]["annotations"]["gke-gcsfuse/volumes"] == "true"
    assert pod["spec"]["serviceAccountName"] in {
        one["metadata"]["name"] for one in made if one["kind"] == "ServiceAccount"
    }
    door, copies = pod["spec"]["containers"]
    assert pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == door["name"] == "files"
    assert copies["securityContext"]["allowPrivilegeEscalation"] is False and "memory" in copies["resources"]["limits"]
    assert {mount["mountPath"] for mount in copies["volumeMounts"]} == {"/results", "/bucket"}


@pytest.mark.parametrize("words", ["svm", "trainjob", "ddp gke", "nfs"])
def test_show_puts_the_image_everywhere(words: str) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    text = shown(*words.split(), image="localhost:5000/a/search:7")
    assert set(re.findall(r" image: (.*)", text)) == {"localhost:5000/a/search:7"}


def test_show_says_what_there_is() -> None:
    for words, image, says in (
        ((), "a/b:c", "give an overlay"),
        (("dance",), "a/b:c", "there is no overlay dance"),
        (("svm", "waltz"), "a/b:c", "there is no component waltz"),
        (("svm",), "", "IMAGE=: give the image"),
    ):
        done = subprocess.run(
            [ROOT / "k8s" / "show.sh", *words], capture_output=True, text=True, env={**os.environ, "IMAGE": image}
        )
        assert done.returncode == 2 and says in done.stderr and not done.stdout
        assert "overlays: cpu ddp" in done.stderr and "components: bucket cpu" in done.stderr


@pytest.mark.slow
def test_seeds_are_studies_of_their_own(tmp_path: Path) -> None:
    (job,) = overlay("join seeds")
    assert job["spec"]["completions"] == 3 and "successPolicy" not in job["spec"]
    env = environment(pod_specs(job)[0]["containers"][0])
    accepted(env["SEARCH"].split()[0], [*env["SEARCH"].split()[1:], *env["OPTIONS"].split(), "--seed", "2"])
    small = "mnist_nn 1 1 --max-channels 8 --max-hidden-layer 16 --epochs 1 --plot 1"
    for index in range(2):
        pod = start_pod(job, index, SEARCH=small, RESULTS=str(tmp_path / "nn-seed"))
        said = pod.communicate()[1]
        assert pod.returncode == 0, said
    seeds = [read_journal(tmp_path / f"nn-seed-{index}").header["settings"]["seed"] for index in range(2)]
    assert seeds == [0, 1]
