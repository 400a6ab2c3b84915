#!/usr/bin/env bash
# One search on Google Kubernetes Engine: from nothing to figures, and nothing left behind.
#
#   IMAGE=REGISTRY/search:gpu k8s/gke.sh [--dry-run] run
#
#   up       network, cluster and GPU nodes; MPI operator, storage and data; then checks that the GPUs are there
#   submit   start the search
#   follow   show its log until it has ended
#   fetch    copy its results and figures to ./results
#   cost     dollars per hour of such a cluster, and of the search that was fetched
#   down     delete all of it, and check that it is gone
#   run      cost, up, submit, follow, fetch, cost, down; after a failure too, the cluster is deleted
#
# --dry-run prints every command and runs none. A failing `up` or `run` deletes what it made, unless KEEP=1 (or the
# search succeeded and its results could not be fetched).
# The variables below are the settings.
set -euo pipefail

PROJECT=${PROJECT:-my-project}
ZONE=${ZONE:-us-central1-a}
CLUSTER=${CLUSTER:-hyperparameter-search}
SEARCH=${SEARCH:-svm}            # svm or nn
IMAGE=${IMAGE:-}                 # built from k8s/Containerfile, in a registry that the cluster can read
NODES=${NODES:-3}                # ranks
GPU=${GPU:-nvidia-l4}            # gcloud compute accelerator-types list
GPUS_PER_NODE=${GPUS_PER_NODE:-1}
MACHINE=${MACHINE:-g2-standard-8}     # with 1 thread per core: 4 CPUs
SPOT=${SPOT:-0}                  # 1: a third of the price, nodes may vanish, the search goes on
THREADS_PER_CORE=${THREADS_PER_CORE:-1}
MTU=${MTU:-8896}                 # of the network, in bytes: the largest that Google Cloud has
DRIVER=${DRIVER:-latest}         # NVIDIA driver: latest or default
OPERATOR=${OPERATOR:-https://raw.githubusercontent.com/kubeflow/mpi-operator/v0.6.0/deploy/v2beta1/mpi-operator.yaml}
RESULTS=${RESULTS:-results}
CREATE_TIMEOUT=${CREATE_TIMEOUT:-1800}   # seconds, as are all below
READY_TIMEOUT=${READY_TIMEOUT:-900}
SEARCH_TIMEOUT=${SEARCH_TIMEOUT:-86400}
DELETE_TIMEOUT=${DELETE_TIMEOUT:-1800}
POLL=${POLL:-10}
KEEP=${KEEP:-0}

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
GCLOUD=(gcloud --quiet --project "$PROJECT")
# Named in every command, so that no other cluster is ever touched.
KUBECTL=(kubectl --context "gke_${PROJECT}_${ZONE}_${CLUSTER}")
THIS_CLUSTER="name=$CLUSTER AND location=$ZONE"
THIS_NETWORK="name=$CLUSTER"
ITS_DISKS="labels.goog-k8s-cluster-name=$CLUSTER"  # of volumes; a deleted cluster may leave them
dry=0
owed=0      # whether a failure from here on must delete the cluster
generated=  # a folder to remove at the end

say() { printf '%s\n' "$*" >&2; }

run() {
    printf '+ %s\n' "$*" >&2
    ((dry)) || "$@"
}

limited() { # SECONDS COMMAND...
    local seconds=$1
    shift
    run timeout --foreground --kill-after 30 "$seconds" "$@"
}

until_true() { # SECONDS WHAT COMMAND...: wait until the command succeeds
    local seconds=$1 what=$2 end=$((SECONDS + $1))
    shift 2
    until "$@"; do
        if ((SECONDS >= end)); then
            say "gke.sh: $what: not within $seconds s"
            return 1
        fi
        sleep "$POLL"
    done
}

names() { # KIND FILTER: of what exists
    # shellcheck disable=SC2086  # a kind is two words
    run "${GCLOUD[@]}" $1 list --filter "$2" --format 'value(name)'
}

apply() { # OVERLAY PATCHES [OPTIONS...]: an overlay with this cluster's image and patches
    local overlay=$1 patches=$2
    shift 2
    generated=$(mktemp -d "$HERE/overlays/.gke.XXXXXX")
    cat >"$generated/kustomization.yaml" <<EOF
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../$overlay]
images:
  - {name: search, newName: "${IMAGE%:*}", newTag: "${IMAGE##*:}"}
patches:
$patches
EOF
    if ((dry)); then
        cat "$generated/kustomization.yaml" >&2
    fi
    run "${KUBECTL[@]}" apply -k "$generated" "$@"
    rm -r "$generated"
    generated=
}

up() {
    local spot=()
    ((SPOT)) && spot=(--spot)
    local there
    there=$(names "container clusters" "$THIS_CLUSTER" && names "compute networks" "$THIS_NETWORK")
    [[ -z $there ]] || {
        say "gke.sh: $CLUSTER exists already: submit to it, take it down, or set another CLUSTER"
        return 2
    }
    owed=1
    run "${GCLOUD[@]}" compute networks create "$CLUSTER" --subnet-mode auto --mtu "$MTU"
    limited "$CREATE_TIMEOUT" "${GCLOUD[@]}" container clusters create "$CLUSTER" --zone "$ZONE" \
        --network "$CLUSTER" --enable-ip-alias --enable-gvnic --num-nodes 1 --machine-type e2-standard-4
    # The pool begins full, so that missing quota shows now; idle nodes go after ten minutes, down to none.
    limited "$CREATE_TIMEOUT" "${GCLOUD[@]}" container node-pools create gpu --cluster "$CLUSTER" --zone "$ZONE" \
        --machine-type "$MACHINE" --accelerator "type=$GPU,count=$GPUS_PER_NODE,gpu-driver-version=$DRIVER" \
        --enable-gvnic --threads-per-core "$THREADS_PER_CORE" "${spot[@]}" \
        --num-nodes "$NODES" --enable-autoscaling --min-nodes 0 --max-nodes "$NODES"
    run "${GCLOUD[@]}" container clusters get-credentials "$CLUSTER" --zone "$ZONE"
    until_true "$READY_TIMEOUT" "$((NODES * GPUS_PER_NODE)) GPUs" gpus_are_allocatable
    run "${KUBECTL[@]}" apply --server-side -f "$OPERATOR"
    run "${KUBECTL[@]}" --namespace mpi-operator rollout status deployment/mpi-operator --timeout "${READY_TIMEOUT}s"
    store
    owed=0
}

gpus_are_allocatable() {
    local counts
    # shellcheck disable=SC1083  # the braces are kubectl's
    counts=$(run "${KUBECTL[@]}" get nodes -l "cloud.google.com/gke-accelerator=$GPU" \
        -o 'jsonpath={.items[*].status.allocatable.nvidia\.com/gpu}') || return
    local sum=0 count
    for count in $counts; do sum=$((sum + count)); done
    ((dry)) || say "$sum of $((NODES * GPUS_PER_NODE)) GPUs can be allocated"
    ((dry || sum >= NODES * GPUS_PER_NODE))
}

store() {
    run "${KUBECTL[@]}" apply -f "$HERE/overlays/nfs/server.yaml"
    local address
    address=$(run "${KUBECTL[@]}" get service nfs -o 'jsonpath={.spec.clusterIP}')
    ((dry)) && address=ADDRESS
    # Nodes, not pods, mount the volumes, and they do not ask the cluster's name server.
    apply nfs "  - target: {kind: PersistentVolume}
    patch: |
      - {op: replace, path: /spec/nfs/server, value: $address}"
    run "${KUBECTL[@]}" wait --for condition=Ready pod/files --timeout "${READY_TIMEOUT}s"
    run "${KUBECTL[@]}" wait --for condition=Complete job/load-data --timeout "${READY_TIMEOUT}s"
}

submit() {
    local worker=/spec/mpiReplicaSpecs/Worker pod=/spec/mpiReplicaSpecs/Worker/template/spec
    apply gke "  - target: {kind: MPIJob}
    patch: |
      - {op: replace, path: $worker/replicas, value: $NODES}
      - {op: replace, path: $pod/nodeSelector/cloud.google.com~1gke-accelerator, value: $GPU}
      - {op: replace, path: $pod/containers/0/resources/requests/nvidia.com~1gpu, value: $GPUS_PER_NODE}
      - {op: replace, path: $pod/containers/0/resources/limits/nvidia.com~1gpu, value: $GPUS_PER_NODE}" \
        -l "search=$SEARCH"
}

follow() {
    until_true "$SEARCH_TIMEOUT" "the end of the search" has_ended
    ((dry)) || [[ $conditions == *" Succeeded "* ]] || {
        say "gke.sh: the search has failed"
        return 1
    }
}

has_ended() {
    conditions=" $(run "${KUBECTL[@]}" get mpijob "$SEARCH" \
        -o 'jsonpath={range .status.conditions[?(@.status=="True")]}{.type} {end}')"
    [[ $conditions == *" Succeeded "* || $conditions == *" Failed "* ]] && return
    # It ends with the launcher's pod, after which there may be another one.
    run "${KUBECTL[@]}" logs --follow --tail 10 "job/$SEARCH-launcher" || true
    ((dry))
}

fetch() {
    run mkdir -p "$RESULTS"
    run "${KUBECTL[@]}" cp "files:/results/$SEARCH" "$RESULTS/$SEARCH"
}

price() { # ITEM: per hour
    local value
    value=$(awk -F, -v item="$1" -v column=$((SPOT ? 3 : 2)) '$1 == item {print $column}' "$HERE/prices.csv")
    [[ $value ]] || {
        say "gke.sh: $1 is not in k8s/prices.csv: add a line for it"
        return 1
    }
    printf '%s' "$value"
}

cost() {
    local machine gpu fee pool hourly seconds journal=$RESULTS/$SEARCH/journal.jsonl
    machine=$(price "$MACHINE")
    gpu=$(price "$GPU")
    fee=$(price cluster)
    pool=$(SPOT=0 price e2-standard-4)
    hourly=$(awk "BEGIN {printf \"%.2f\", $NODES * ($machine + $GPUS_PER_NODE * $gpu) + $fee + $pool}")
    echo "cluster: $hourly USD per hour, $NODES nodes of $MACHINE, by the list prices in k8s/prices.csv"
    if [[ -e $journal ]]; then
        seconds=$(sed -n 's/^{"end":{.*"seconds":\([0-9.]*\).*/\1/p' "$journal" | awk '{sum += $1} END {print sum + 0}')
        awk "BEGIN {printf \"search: %.2f USD for %.0f s\n\", $hourly * $seconds / 3600, $seconds}"
    fi
}

none_left() { # KIND FILTER OPTIONS...: delete what exists; succeeds once nothing does
    local kind=$1 found name
    found=$(names "$1" "$2") || return
    shift 2
    ((dry)) && found=NAME
    for name in $found; do
        # It may fail now and succeed later: a cluster that is still being made cannot be deleted.
        # shellcheck disable=SC2086
        limited "$DELETE_TIMEOUT" "${GCLOUD[@]}" $kind delete "$name" "$@" || true
    done
    ((dry)) || [[ -z $found ]]
}

down() {
    owed=0
    # While the cluster is there it can delete its disks by itself.
    run "${KUBECTL[@]}" delete mpijob,pod,job,deployment,pvc --all --timeout 120s || true
    if until_true "$DELETE_TIMEOUT" "deleting the cluster" none_left "container clusters" "$THIS_CLUSTER" --zone "$ZONE" &&
        until_true "$DELETE_TIMEOUT" "deleting its disks" none_left "compute disks" "$ITS_DISKS" --zone "$ZONE" &&
        until_true "$DELETE_TIMEOUT" "deleting its network" none_left "compute networks" "$THIS_NETWORK"; then
        say "nothing is left of $CLUSTER"
    else
        warn
        return 1
    fi
}

warn() {
    say ""
    say "!! Cluster $CLUSTER in $ZONE of project $PROJECT MAY STILL EXIST AND COST MONEY."
    say "!! Look:   ${GCLOUD[*]} container clusters list"
    say "!! Delete: PROJECT=$PROJECT ZONE=$ZONE CLUSTER=$CLUSTER k8s/gke.sh down"
}

all() {
    cost
    up
    owed=1
    submit
    follow || {
        fetch || say "gke.sh: no results could be fetched"
        return 1
    }
    fetch || {
        KEEP=1
        say "gke.sh: the results are still there, so is the cluster: k8s/gke.sh fetch, then k8s/gke.sh down"
        return 1
    }
    cost
    down
}

at_exit() {
    local status=$?
    trap - EXIT
    [[ -z $generated ]] || rm -r "$generated"
    if ((status && owed)); then
        say "gke.sh: failed with status $status"
        if ((KEEP)); then
            warn
        else
            set +e
            down
        fi
    fi
    exit "$status"
}
trap at_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

if [[ ${1:-} == --dry-run ]]; then
    dry=1
    shift
fi
case ${1:-} in
    up | run | submit)
        [[ $IMAGE == *:* ]] || {
            say "gke.sh: IMAGE is not set: give REGISTRY/search:TAG, built from k8s/Containerfile"
            exit 2
        }
        ;;
    follow | fetch | cost | down) ;;
    *)
        sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
        exit 2
        ;;
esac
if [[ $1 == run ]]; then
    all
else
    "$1"
fi
