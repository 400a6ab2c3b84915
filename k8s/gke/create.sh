#!/usr/bin/env bash
# A cluster for SEARCH: the cheap parts first, the nodes of the search last, once all of it is well.
# Status 2: nothing was made.
set -euo pipefail
# shellcheck source=k8s/gke/settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
patches="  - target: {kind: PersistentVolumeClaim, name: nfs-disk}
    patch: |
      - {op: replace, path: /spec/resources/requests/storage, value: $DISK_SIZE}
      - {op: add, path: /spec/storageClassName, value: $DISK_CLASS}"
server=$(PATCHES=$patches "$K8S/show.sh" nfs)
for tool in gcloud kubectl gke-gcloud-auth-plugin; do
    dry || command -v $tool >/dev/null || refuse "$tool is missing: gcloud components install kubectl gke-gcloud-auth-plugin"
done
there=$(gcloud container clusters list --filter "name=$CLUSTER AND location=$ZONE" --format 'value(name)') ||
    refuse "project $PROJECT cannot be looked at: gcloud auth login, and set PROJECT"
[[ $NETWORK ]] || there+=$(gcloud compute networks list --filter "name=$CLUSTER" --format 'value(name)') || exit 2
[[ -z $there ]] || refuse "$CLUSTER exists already: search.sh uses it, delete.sh deletes it; or set another CLUSTER"
"$K8S/gke/cost.sh"

[[ $NETWORK ]] || # with the largest packets that Google Cloud has
    gcloud compute networks create "$CLUSTER" --subnet-mode auto --mtu 8896 --description made-by-mpitune
# Disks of volumes carry the cluster's name by --enable-cost-allocation.
gcloud container clusters create "$CLUSTER" --zone "$ZONE" --labels made-by=mpitune \
    --network "${NETWORK:-$CLUSTER}" --enable-ip-alias --enable-gvnic --enable-cost-allocation \
    --num-nodes "$MAIN_NODES" --machine-type "$MAIN_MACHINE"
gcloud container clusters get-credentials "$CLUSTER" --zone "$ZONE"

kubectl apply -l app=nfs -f - <<<"$server"
# Nodes, not pods, mount the volumes, and they do not ask the cluster's name server.
address=$(kubectl get service nfs -o 'jsonpath={.spec.clusterIP}')
storage=$(PATCHES="$patches
  - target: {kind: PersistentVolume}
    patch: |
      - {op: replace, path: /spec/nfs/server, value: ${address:-ADDRESS}}" "$K8S/show.sh" nfs)
kubectl apply -f - <<<"$storage"
say "if this takes long: is $IMAGE there, may the nodes read it (k8s/README.md), does it start? kubectl describe pods"
kubectl wait --for condition=Ready pod/files --timeout 15m
kubectl wait --for condition=Complete job/load-data --timeout 15m
kubectl apply --server-side -f https://raw.githubusercontent.com/kubeflow/mpi-operator/v0.8.2/deploy/v2beta1/mpi-operator.yaml

options=()
[[ $GPU == none ]] || options+=(--accelerator "type=$GPU,count=$GPUS_PER_NODE,gpu-driver-version=latest")
[[ $SPOT == no ]] || options+=(--spot)
# All at once, so that missing GPUs show now; they go when they have been idle for ten minutes, or after the given time.
gcloud container node-pools create workers --cluster "$CLUSTER" --zone "$ZONE" --machine-type "$MACHINE" "${options[@]}" \
    --enable-gvnic --threads-per-core 1 --max-run-duration "$((SEARCH_TIMEOUT + 3600))s" \
    --num-nodes "$NODES" --enable-autoscaling --min-nodes 0 --max-nodes "$NODES"
