#!/usr/bin/env bash
# A cluster for SEARCH: the cheap parts first, the nodes of the search last, once all of it is well.
# Status 2: nothing was made.
set -euo pipefail
# shellcheck source=k8s/gke/settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
needs_image
for tool in gcloud kubectl gke-gcloud-auth-plugin; do
    dry || command -v $tool >/dev/null || refuse "$tool is missing: gcloud components install kubectl gke-gcloud-auth-plugin"
done
there=$(gcloud container clusters list --filter "name=$CLUSTER AND location=$ZONE" --format 'value(name)') ||
    refuse "project $PROJECT cannot be looked at: gcloud auth login, and set PROJECT"
[[ $NETWORK ]] || there+=$(gcloud compute networks list --filter "name=$CLUSTER" --format 'value(name)') ||
    refuse "the networks of project $PROJECT cannot be looked at"
[[ -z $there ]] || refuse "$CLUSTER exists already: search.sh uses it, delete.sh deletes it; or set another CLUSTER"

read -r first _ <<<"$NODES"
most=${NODES##* }
seconds=$(($(wc -w <<<"$NODES") * (SEARCH_TIMEOUT + 3600))) # after this time the nodes end by themselves
echo "$("$K8S/gke/cost.sh" "$most") USD per hour with $most nodes of $MACHINE, which end by themselves after $seconds s"

[[ $NETWORK ]] ||
    gcloud compute networks create "$CLUSTER" --subnet-mode auto --mtu "$MTU" --description made-by-mpitune
bucket=()
# --addons takes the place of the default ones, so these are named too.
[[ -z $RESULTS_BUCKET ]] || bucket=(--workload-pool "$PROJECT.svc.id.goog" --addons
    "HttpLoadBalancing,HorizontalPodAutoscaling,GcePersistentDiskCsiDriver,GcsFuseCsiDriver")
# Disks of volumes carry the cluster's name by --enable-cost-allocation.
gcloud container clusters create "$CLUSTER" --zone "$ZONE" --labels made-by=mpitune \
    --network "${NETWORK:-$CLUSTER}" --enable-ip-alias --enable-gvnic --enable-cost-allocation "${bucket[@]}" \
    --num-nodes "$MAIN_NODES" --machine-type "$MAIN_MACHINE"
gcloud container clusters get-credentials "$CLUSTER" --zone "$ZONE"

disk="  - target: {kind: PersistentVolumeClaim, name: nfs-disk}
    patch: |
      - {op: replace, path: /spec/resources/requests/storage, value: $DISK_SIZE}
      - {op: add, path: /spec/storageClassName, value: $DISK_CLASS}"
manifests=$(PATCHES=$disk "$K8S/show.sh" nfs)
kubectl apply -l app=nfs -f - <<<"$manifests"
# Nodes, not pods, mount the volumes, and they do not ask the cluster's name server.
address=$(kubectl get service nfs -o 'jsonpath={.spec.clusterIP}')
patches="$disk
  - target: {kind: PersistentVolume}
    patch: |
      - {op: replace, path: /spec/nfs/server, value: ${address:-ADDRESS}}"
[[ -z $RESULTS_BUCKET ]] || patches+="
  - target: {kind: Pod, name: files}
    patch: |
      - {op: test, path: /spec/volumes/2/name, value: bucket}
      - {op: replace, path: /spec/volumes/2/csi/volumeAttributes/bucketName, value: $RESULTS_BUCKET}"
manifests=$(PATCHES=$patches "$K8S/show.sh" nfs ${RESULTS_BUCKET:+bucket})
kubectl apply -f - <<<"$manifests"
kubectl wait --for condition=Ready pod/files --timeout "${READY_TIMEOUT}s" || {
    kubectl get pods
    say "create.sh: is $IMAGE there, may the nodes read it (k8s/README.md), does it start? kubectl describe pods; kubectl logs files"
    exit 1
}
kubectl wait --for condition=Complete job/load-data --timeout "${READY_TIMEOUT}s"

if [[ $SEARCH == ddp ]]; then
    kubectl apply --server-side -k "$TRAINER/manager?ref=$TRAINER_VERSION"
    kubectl --namespace kubeflow-system rollout status deployment/kubeflow-trainer-controller-manager \
        --timeout "${READY_TIMEOUT}s"
    # Its webhook judges runtimes, and answers a while after it says that it is ready.
    again "$READY_TIMEOUT" kubectl apply --server-side -k "$TRAINER/runtimes?ref=$TRAINER_VERSION"
else
    kubectl apply --server-side -f "$OPERATOR"
    kubectl --namespace mpi-operator rollout status deployment/mpi-operator --timeout "${READY_TIMEOUT}s"
fi

gpus=() spot=()
[[ $GPU == none ]] || gpus=(--accelerator "type=$GPU,count=$GPUS_PER_NODE,gpu-driver-version=latest")
[[ $SPOT == no ]] || spot=(--spot)
# At its first size at once, so that missing GPUs show now; idle nodes go after ten minutes, down to none.
gcloud container node-pools create workers --cluster "$CLUSTER" --zone "$ZONE" \
    --machine-type "$MACHINE" "${gpus[@]}" "${spot[@]}" --enable-gvnic --threads-per-core "$THREADS_PER_CORE" \
    ${NODE_CONFIG:+--system-config-from-file "$NODE_CONFIG"} --max-run-duration "${seconds}s" \
    --num-nodes "$first" --enable-autoscaling --min-nodes 0 --max-nodes "$most"
