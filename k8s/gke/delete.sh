#!/usr/bin/env bash
# Deletes the cluster that create.sh has made, the disks of its volumes and its network, and looks that they have gone.
set -euo pipefail
# shellcheck source=k8s/gke/settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

named="name=$CLUSTER AND location=$ZONE"
ours="$named AND resourceLabels.made-by=mpitune"

warn() {
    say ""
    say "!! Cluster $CLUSTER in $ZONE of project $PROJECT MAY STILL EXIST AND COST MONEY."
    say "!! Look:   gcloud --project $PROJECT container clusters list"
    say "!! Delete: PROJECT=$PROJECT ZONE=$ZONE CLUSTER=$CLUSTER k8s/gke/delete.sh"
}

listed() { # KIND FILTER: the names of what exists
    # shellcheck disable=SC2086  # a kind is two words
    gcloud $1 list --filter "$2" --format 'value(name)'
}

gone() { # KIND FILTER OPTIONS...: what is listed is deleted, until nothing is listed
    local found end=$((SECONDS + DELETE_TIMEOUT))
    # shellcheck disable=SC2086
    ! dry || gcloud $1 delete "$CLUSTER" "${@:3}"
    until found=$(listed "$1" "$2") && [[ -z $found ]]; do
        ((SECONDS < end)) || return 1
        # It may fail now and succeed later: a cluster that is still being made cannot be deleted.
        # shellcheck disable=SC2086  # several words
        [[ $found ]] && gcloud $1 delete $found "${@:3}" && continue
        sleep "$POLL"
    done
}

trap warn EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
there=$(listed "container clusters" "$named")
mine=$(listed "container clusters" "$ours")
[[ $there == "$mine" ]] || {
    trap - EXIT
    refuse "$CLUSTER was not made by k8s/gke/create.sh: it is left alone"
}
if [[ $mine ]] || dry; then
    # While the cluster is there it can delete its disks by itself, once nothing uses them.
    jobs=mpijobs.kubeflow.org
    [[ $SEARCH != ddp ]] || jobs=trainjobs.trainer.kubeflow.org
    kubectl delete "$jobs,deployment,job,pod,pvc" --all --timeout "${READY_TIMEOUT}s" || say "its disks are deleted below"
fi
gone "container clusters" "$ours" --zone "$ZONE"
gone "compute disks" "labels.goog-k8s-cluster-name=$CLUSTER AND zone:$ZONE" --zone "$ZONE"
[[ $NETWORK ]] || gone "compute networks" "name=$CLUSTER AND description=made-by-mpitune"
trap - EXIT
dry || say "nothing is left of $CLUSTER"
