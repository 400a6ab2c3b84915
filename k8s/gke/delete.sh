#!/usr/bin/env bash
# Deletes the cluster that create.sh has made, the disks of its volumes and its network, and looks that they have gone.
set -euo pipefail
# shellcheck source=k8s/gke/settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
named="name=$CLUSTER AND location=$ZONE"
ours="$named AND resourceLabels.made-by=mpitune"

warn() {
    say "!! Cluster $CLUSTER in $ZONE of project $PROJECT MAY STILL EXIST AND COST MONEY."
    say "!! Look:   gcloud --project $PROJECT container clusters list"
    say "!! Delete: PROJECT=$PROJECT ZONE=$ZONE CLUSTER=$CLUSTER k8s/gke/delete.sh"
}
trap warn EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

gone() { # FILTER GROUP KIND OPTIONS...: what is listed is deleted, until nothing is listed
    local found end=$((SECONDS + DELETE_TIMEOUT))
    ! dry || gcloud "$2" "$3" delete "$CLUSTER" "${@:4}"
    until found=$(gcloud "$2" "$3" list --filter "$1" --format 'value(name)') && [[ -z $found ]]; do
        ((SECONDS < end)) || return 1
        # It may fail now and succeed later: a cluster that is still being made cannot be deleted.
        # shellcheck disable=SC2086  # several names
        [[ $found ]] && gcloud "$2" "$3" delete $found "${@:4}" && continue
        sleep "$POLL"
    done
}

there=$(gcloud container clusters list --filter "$named" --format 'value(name)')
mine=$(gcloud container clusters list --filter "$ours" --format 'value(name)')
[[ $there == "$mine" ]] || { trap - EXIT; refuse "$CLUSTER was not made by k8s/gke/create.sh: it is left alone"; }
# While the cluster is there it can delete its disks by itself, once nothing uses them; else they are deleted below.
kubectl delete mpijobs.kubeflow.org,deployment,job,pod,pvc --all --timeout 15m || true
gone "$ours" container clusters --zone "$ZONE"
gone "labels.goog-k8s-cluster-name=$CLUSTER AND zone:$ZONE" compute disks --zone "$ZONE"
[[ $NETWORK ]] || gone "name=$CLUSTER AND description=made-by-mpitune" compute networks
trap - EXIT
dry || say "nothing is left of $CLUSTER"
