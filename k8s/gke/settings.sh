# shellcheck shell=bash disable=SC2034
# What the scripts of this folder share. The variables are the settings.

PROJECT=${PROJECT:-my-project}
ZONE=${ZONE:-us-central1-a}
CLUSTER=${CLUSTER:-hyperparameter-search}
SEARCH=${SEARCH:-svm}            # svm or nn
GPU=${GPU:-nvidia-l4}            # gcloud compute accelerator-types list; none: nodes without GPUs
GPUS_PER_NODE=${GPUS_PER_NODE:-1}
[[ $GPU != none ]] || GPUS_PER_NODE=0 MACHINE=${MACHINE:-n1-standard-8} OPTIONS=${OPTIONS:---gpu none}
MACHINE=${MACHINE:-g2-standard-8}  # with 4 CPUs or more for each GPU, or training waits for CPUs
COMMAND=${COMMAND:-}             # program and its arguments, such as "mnist_svm 48" (default: as in overlays/SEARCH)
OPTIONS=${OPTIONS:---gpu all}    # of the program
NODES=${NODES:-3}                # of the search, one rank on each
MAIN_MACHINE=${MAIN_MACHINE:-e2-standard-4}  # of the nodes without GPU: operator, NFS server, launcher
MAIN_NODES=${MAIN_NODES:-1}
DISK_SIZE=${DISK_SIZE:-10Gi}     # of the volume behind the NFS server, and its class
DISK_CLASS=${DISK_CLASS:-standard-rwo}
SPOT=${SPOT:-no}                 # yes: a third of the price, nodes may vanish, the search goes on
NETWORK=${NETWORK:-}             # one that is there, which is never deleted (default: one for this cluster alone)
RESULTS=${RESULTS:-results}
SEARCH_TIMEOUT=${SEARCH_TIMEOUT:-86400}  # seconds, as are those below
DELETE_TIMEOUT=${DELETE_TIMEOUT:-1800}
FETCH_EVERY=${FETCH_EVERY:-300}
POLL=${POLL:-10}
DRY_RUN=${DRY_RUN:-no}           # yes: print every command, and run none
say() { printf '%s\n' "$*" >&2; }
refuse() { say "${0##*/}: $*"; exit 2; }
dry() { [[ $DRY_RUN == yes ]]; }

K8S=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
is() { [[ ${!1} =~ ^($2)$ ]] || refuse "$1=${!1}: give $3"; }
is SEARCH "svm|nn" "svm or nn"
is SPOT "yes|no" "yes or no"
is DRY_RUN "yes|no" "yes or no"
for name in NODES MAIN_NODES GPUS_PER_NODE; do
    is $name "[1-9][0-9]*$([[ $GPU != none ]] || echo "|0")" "a whole number from 1"
done
for line in "$MACHINE,.*,[0-9]+,[0-9]+" "$MAIN_MACHINE,.*" "$GPU,.*"; do
    [[ $line == none,* ]] || grep -Eqx "$line" "$K8S/prices.csv" || refuse "${line%%,*} is not in k8s/prices.csv: add a line for it"
done

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
