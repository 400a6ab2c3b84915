# shellcheck shell=bash disable=SC2034,SC2086
# What the scripts of this folder share. The variables are the settings.

PROJECT=${PROJECT:-my-project}
ZONE=${ZONE:-us-central1-a}
CLUSTER=${CLUSTER:-hyperparameter-search}
SEARCH=${SEARCH:-svm}            # svm, nn, or ddp: data-parallel training of one network
GPU=${GPU:-nvidia-l4}            # gcloud compute accelerator-types list; none: nodes without GPUs
GPUS_PER_NODE=${GPUS_PER_NODE:-1}
[[ $GPU != none ]] || GPUS_PER_NODE=0 MACHINE=${MACHINE:-n1-standard-8} OPTIONS=${OPTIONS:---gpu none}
MACHINE=${MACHINE:-g2-standard-8}
COMMAND=${COMMAND:-}             # program and its arguments, such as "mnist_svm 48" (default: as in overlays/SEARCH)
OPTIONS=${OPTIONS:---gpu all}    # of the program; for ddp all of its options but --data, --results and --resume
IMAGE=${IMAGE:-}                 # built from k8s/Containerfile, in a registry that the cluster can read
NODES=${NODES:-3}                # ranks; for ddp several sizes, such as "1 2 4 8", until one of them cannot be had
MAIN_MACHINE=${MAIN_MACHINE:-e2-standard-4}  # of the nodes without GPU: operator, NFS server, launcher
MAIN_NODES=${MAIN_NODES:-1}
DISK_SIZE=${DISK_SIZE:-10Gi}     # of the volume behind the NFS server, and its class
DISK_CLASS=${DISK_CLASS:-standard-rwo}
SPOT=${SPOT:-no}                 # yes: a third of the price, nodes may vanish, the search goes on
THREADS_PER_CORE=${THREADS_PER_CORE:-1}
NETWORK=${NETWORK:-}             # one that is there, which is never deleted (default: one for this cluster alone)
MTU=${MTU:-8896}                 # of the cluster's own network, in bytes: the largest that Google Cloud has
NODE_CONFIG=${NODE_CONFIG:-}     # file for --system-config-from-file of the nodes of the search
RESULTS_BUCKET=${RESULTS_BUCKET:-}  # copies of the results go to this bucket as well, from within the cluster
RESULTS=${RESULTS:-results}
SEARCH_TIMEOUT=${SEARCH_TIMEOUT:-86400}  # seconds, as are those below
READY_TIMEOUT=${READY_TIMEOUT:-900}
DELETE_TIMEOUT=${DELETE_TIMEOUT:-1800}
FETCH_EVERY=${FETCH_EVERY:-300}
POLL=${POLL:-10}
DRY_RUN=${DRY_RUN:-no}           # yes: print every command, and run none

OPERATOR=https://raw.githubusercontent.com/kubeflow/mpi-operator/v0.8.2/deploy/v2beta1/mpi-operator.yaml
TRAINER=github.com/kubeflow/trainer.git/manifests/overlays # its folders "manager" and "runtimes"
TRAINER_VERSION=v2.3.0

say() { printf '%s\n' "$*" >&2; }

refuse() {
    say "${0##*/}: $*"
    exit 2
}

for name in SPOT DRY_RUN; do
    [[ ${!name} == yes || ${!name} == no ]] || refuse "$name=${!name}: give yes or no"
done
case $SEARCH in svm | nn | ddp) ;; *) refuse "SEARCH=$SEARCH: give svm, nn or ddp" ;; esac
for value in $NODES "$MAIN_NODES" $([[ $GPU == none ]] || echo "$GPUS_PER_NODE"); do
    [[ $value =~ ^[1-9][0-9]*$ ]] || refuse "NODES, GPUS_PER_NODE and MAIN_NODES are whole numbers from 1, not $value"
done
[[ $SEARCH == ddp || $NODES != *" "* ]] || refuse "NODES=$NODES: several numbers are for SEARCH=ddp"
RESULTS_BUCKET=${RESULTS_BUCKET#gs://}
[[ $RESULTS_BUCKET != */* ]] || refuse "RESULTS_BUCKET=$RESULTS_BUCKET: give the name of a bucket alone"
[[ -z $NODE_CONFIG || -r $NODE_CONFIG ]] || refuse "NODE_CONFIG=$NODE_CONFIG cannot be read"
NODES=$(printf '%s\n' $NODES | sort -n -u | paste -sd ' ')
K8S=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

needs_image() {
    [[ $IMAGE =~ ^[^:\ #]+(:[0-9]+/[^:\ #]+)?:[^:/\ #]+$ ]] ||
        refuse "IMAGE=$IMAGE has no tag: give REGISTRY/search:TAG, built from k8s/Containerfile"
}

dry() { [[ $DRY_RUN == yes ]]; }

# Project and cluster are named in every command, so that no other is ever touched. A failure has status 1, as others
# mean something here.
gcloud() {
    say "+ gcloud --project $PROJECT $*"
    dry || command gcloud --quiet --project "$PROJECT" "$@" || return 1
}

kubectl() {
    say "+ kubectl $*"
    dry || command kubectl --context "gke_${PROJECT}_${ZONE}_${CLUSTER}" "$@" || return 1
}

again() { # SECONDS COMMAND...: until it succeeds
    local end=$((SECONDS + $1))
    until "${@:2}"; do
        ((SECONDS < end)) || return 1
        sleep "$POLL"
    done
}
