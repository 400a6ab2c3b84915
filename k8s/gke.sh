#!/usr/bin/env bash
# One search on Google Kubernetes Engine: from nothing to figures, and nothing left behind.
#
#   IMAGE=REGISTRY/search:gpu k8s/gke.sh [--dry-run] run
#
#   check    what would fail later: tools, APIs, quotas, the image; and what the run may cost at most
#   up       network, cluster, operator, storage, data, the command; and GPU nodes last, once all of it is well
#   put      bring results of an earlier cluster back into this one (run and submit do, where there are any)
#   submit   start the search, or start one again that has failed
#   follow   show its log and fetch its results now and then, until it has ended
#   fetch    copy its results and figures to ./results
#   cost     dollars per hour of such a cluster, and of the search that was fetched
#   prices   dollars per hour with 1, 2, 4 ... 32 nodes of MACHINE
#   down     delete all of it, and check that it is gone
#   run      check, up, submit, follow, fetch, cost, down; after a failure too, the cluster is deleted
#
# --dry-run prints every command and runs none. A failing `up` or `run` deletes what it made, unless KEEP=yes (or the
# search succeeded and its results could not be fetched).
# The variables below are the settings.
set -euo pipefail

PROJECT=${PROJECT:-my-project}
ZONE=${ZONE:-us-central1-a}
CLUSTER=${CLUSTER:-hyperparameter-search}
SEARCH=${SEARCH:-svm}            # svm, nn, or ddp: data-parallel training of one network
GPU=${GPU:-nvidia-l4}            # gcloud compute accelerator-types list; none: nodes without GPUs
[[ $GPU != none ]] || GPUS_PER_NODE=0
[[ ${GPUS_PER_NODE:=1} != 0 ]] || GPU=none MACHINE=${MACHINE:-n1-standard-8} OPTIONS=${OPTIONS:---gpu none}
MACHINE=${MACHINE:-g2-standard-8}
COMMAND=${COMMAND:-}             # program and its arguments, such as "mnist_svm 48" (default: as in overlays/SEARCH)
OPTIONS=${OPTIONS:---gpu all}    # of the program (without GPUs: --gpu none); for ddp all of its options but --data, --results and --resume
IMAGE=${IMAGE:-}                 # built from k8s/Containerfile, in a registry that the cluster can read
NODES=${NODES:-3}                # ranks; for ddp several sizes, such as "1 2 4", until one of them cannot be had
MAIN_MACHINE=${MAIN_MACHINE:-e2-standard-4}  # of the nodes without GPU: operator, NFS server, launcher
MAIN_NODES=${MAIN_NODES:-1}
DISK_SIZE=${DISK_SIZE:-10Gi}     # of the volume behind the NFS server, and its class
DISK_CLASS=${DISK_CLASS:-standard-rwo}
SPOT=${SPOT:-no}                 # yes: a third of the price, nodes may vanish, the search goes on
THREADS_PER_CORE=${THREADS_PER_CORE:-1}
NETWORK=${NETWORK:-}             # one that is there, which is never deleted (default: one for this cluster alone)
MTU=${MTU:-8896}                 # of the cluster's own network, in bytes: the largest that Google Cloud has
DRIVER=${DRIVER:-latest}         # NVIDIA driver: latest, default, or disabled: Google's DaemonSet installs it
RESULTS_BUCKET=${RESULTS_BUCKET:-}  # copies of the results go to this bucket as well, from within the cluster
NODE_CONFIG=${NODE_CONFIG:-}     # file for --system-config-from-file of the GPU nodes
RELEASES=https://raw.githubusercontent.com/kubeflow
OPERATOR=${OPERATOR:-$RELEASES/mpi-operator/v0.8.2/deploy/v2beta1/mpi-operator.yaml}
TRAINER=${TRAINER:-github.com/kubeflow/trainer.git/manifests/overlays}  # its folders "manager" and "runtimes"
TRAINER_VERSION=${TRAINER_VERSION:-v2.3.0}
DRIVERS=${DRIVERS:-https://raw.githubusercontent.com/GoogleCloudPlatform/container-engine-accelerators/master/nvidia-driver-installer/cos/daemonset-preloaded.yaml}
RESULTS=${RESULTS:-results}
CREATE_TIMEOUT=${CREATE_TIMEOUT:-1800}   # seconds, as are all below
READY_TIMEOUT=${READY_TIMEOUT:-900}
SEARCH_TIMEOUT=${SEARCH_TIMEOUT:-86400}
DELETE_TIMEOUT=${DELETE_TIMEOUT:-1800}
FETCH_EVERY=${FETCH_EVERY:-300}  # results are copied out so often while the search runs
CALL_TIMEOUT=${CALL_TIMEOUT:-120}  # of one question to the cluster
POLL=${POLL:-10}
KEEP=${KEEP:-no}                 # yes: a failure deletes nothing

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=k8s/gke/tools.sh
. "$HERE/gke/tools.sh"
switches SPOT KEEP
# shellcheck source=k8s/gke/checks.sh
. "$HERE/gke/checks.sh"
# shellcheck source=k8s/gke/cost.sh
. "$HERE/gke/cost.sh"
# shellcheck source=k8s/gke/cluster.sh
. "$HERE/gke/cluster.sh"
# shellcheck source=k8s/gke/search.sh
. "$HERE/gke/search.sh"

all() {
    local part
    check
    up
    owed=1
    for part in $PARTS; do
        NODES=$part
        [[ $part == "${PARTS%% *}" ]] || grow "$part" || {
            say "gke.sh: $part nodes cannot be had (above): the sizes before are all that is trained"
            break
        }
        submit
        follow || {
            fetch || say "gke.sh: no results could be fetched after the failure: the last copy is in $RESULTS"
            return 1
        }
        fetch || {
            KEEP=1
            say "gke.sh: the results are still there, so is the cluster: k8s/gke.sh fetch, then k8s/gke.sh down"
            return 1
        }
        cost
        [[ $SEARCH != ddp ]] || table_row
    done
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
    check | up | run | submit) settings "$1" ;;
    put | follow | fetch | cost | prices | down) ;;
    *)
        sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
        exit 2
        ;;
esac
case $1 in
    run) all ;;
    *) "$1" ;;
esac
