# shellcheck shell=bash
# Making the cluster, cheap parts first, and deleting all of it.

THIS_CLUSTER="name=$CLUSTER AND location=$ZONE"
THIS_NETWORK="name=$CLUSTER"
ITS_DISKS="labels.goog-k8s-cluster-name=$CLUSTER" # of volumes; they carry it by --enable-cost-allocation
DISK_NAMES=$RESULTS/.disks-of-$CLUSTER            # those of the volumes, for the time after the cluster
BILL=$RESULTS/.bill-of-$CLUSTER                   # since when it has cost how much per hour

names() { # KIND FILTER: of what exists
    # shellcheck disable=SC2086  # a kind is two words
    asked "${GCLOUD[@]}" $1 list --filter "$2" --format 'value(name)'
}

up() {
    local spot=() config=() bucket=() gpus=() there
    [[ ${MEMORY:-} ]] || measure
    ((!SPOT)) || spot=(--spot)
    [[ $GPU == none ]] || gpus=(--accelerator "type=$GPU,count=$GPUS_PER_NODE,gpu-driver-version=$DRIVER")
    [[ -z $NODE_CONFIG ]] || config=(--system-config-from-file "$NODE_CONFIG")
    # --addons takes the place of the default ones, so these are named too.
    [[ -z $RESULTS_BUCKET ]] || bucket=(--workload-pool "$PROJECT.svc.id.goog" --addons
        "HttpLoadBalancing,HorizontalPodAutoscaling,GcePersistentDiskCsiDriver,GcsFuseCsiDriver")
    there=$(names "container clusters" "$THIS_CLUSTER" && { [[ $NETWORK ]] || names "compute networks" "$THIS_NETWORK"; })
    [[ -z $there ]] || refuse "$CLUSTER exists already: submit to it, take it down, or set another CLUSTER"
    owed=1
    ((dry)) || rm -f "$BILL"
    [[ $NETWORK ]] ||
        limited "$CREATE_TIMEOUT" "${GCLOUD[@]}" compute networks create "$CLUSTER" --subnet-mode auto --mtu "$MTU"
    held 0
    limited "$CREATE_TIMEOUT" "${GCLOUD[@]}" container clusters create "$CLUSTER" --zone "$ZONE" \
        --network "${NETWORK:-$CLUSTER}" --enable-ip-alias --enable-gvnic --enable-cost-allocation "${bucket[@]}" \
        --num-nodes "$MAIN_NODES" --machine-type "$MAIN_MACHINE"
    asked "${GCLOUD[@]}" container clusters get-credentials "$CLUSTER" --zone "$ZONE"
    store
    command_is_taken
    operator
    [[ $DRIVER != disabled ]] || asked "${KUBECTL[@]}" apply -f "$DRIVERS"
    # At its first size at once, so that missing GPUs show now; idle nodes go after ten minutes, down to none.
    held "${PARTS%% *}"
    limited "$CREATE_TIMEOUT" "${GCLOUD[@]}" container node-pools create workers --cluster "$CLUSTER" --zone "$ZONE" \
        --machine-type "$MACHINE" "${gpus[@]}" \
        --enable-gvnic --threads-per-core "$THREADS_PER_CORE" "${spot[@]}" "${config[@]}" \
        --max-run-duration "$(pool_seconds)s" \
        --num-nodes "${PARTS%% *}" --enable-autoscaling --min-nodes 0 --max-nodes "$MOST_NODES"
    gpus_within "${PARTS%% *}"
    owed=0
}

grow() { # NODES: the pool of workers, for the next part; fails where so many cannot be had
    held "$1"
    limited "$CREATE_TIMEOUT" "${GCLOUD[@]}" container clusters resize "$CLUSTER" --zone "$ZONE" --node-pool workers \
        --num-nodes "$1" && gpus_within "$1"
}

gpus_within() { # NODES
    [[ $GPU == none ]] || until_true "$READY_TIMEOUT" "$(($1 * GPUS_PER_NODE)) GPUs" gpus_are_allocatable $(($1 * GPUS_PER_NODE))
}

gpus_are_allocatable() { # NUMBER
    local counts
    # shellcheck disable=SC1083  # the braces are kubectl's
    counts=$(asked "${KUBECTL[@]}" get nodes -l "cloud.google.com/gke-accelerator=$GPU" \
        -o 'jsonpath={.items[*].status.allocatable.nvidia\.com/gpu}') || return
    local sum=0 count
    for count in $counts; do sum=$((sum + count)); done
    ((dry)) || say "$sum of $1 GPUs can be allocated"
    ((dry || sum >= $1))
}

operator() {
    if [[ $SEARCH == ddp ]]; then
        asked "${KUBECTL[@]}" apply --server-side -k "$TRAINER/manager?ref=$TRAINER_VERSION"
        rolled_out --namespace kubeflow-system rollout status deployment/kubeflow-trainer-controller-manager
        # Its webhooks judge runtimes and TrainJobs, and answer a while after it says that it is ready.
        until_true "$READY_TIMEOUT" "the runtimes of Kubeflow Trainer" \
            asked "${KUBECTL[@]}" apply --server-side -k "$TRAINER/runtimes?ref=$TRAINER_VERSION"
        until_true "$READY_TIMEOUT" "the webhook of Kubeflow Trainer" webhook_answers
    else
        asked "${KUBECTL[@]}" apply --server-side -f "$OPERATOR"
        rolled_out --namespace mpi-operator rollout status deployment/mpi-operator
    fi
}

webhook_answers() {
    local NODES=$MOST_NODES
    trainjob apply --dry-run=server
}

rolled_out() { # a waiting kubectl command, whose requests have no limit of their own
    limited "$((READY_TIMEOUT + 30))" kubectl --context "gke_${PROJECT}_${ZONE}_${CLUSTER}" "$@" \
        --timeout "${READY_TIMEOUT}s"
}

store() {
    local address copies="" components="" disk="  - target: {kind: PersistentVolumeClaim, name: nfs-disk}
    patch: |
      - {op: replace, path: /spec/resources/requests/storage, value: $DISK_SIZE}
      - {op: add, path: /spec/storageClassName, value: $DISK_CLASS}"
    [[ -z $RESULTS_BUCKET ]] || copies="
  - target: {kind: Pod, name: files}
    patch: |
      - {op: test, path: /spec/volumes/2/name, value: bucket}
      - {op: replace, path: /spec/volumes/2/csi/volumeAttributes/bucketName, value: $RESULTS_BUCKET}" components=bucket
    overlay nfs "$disk" apply -l app=nfs
    address=$(asked "${KUBECTL[@]}" get service nfs -o 'jsonpath={.spec.clusterIP}')
    ((!dry)) || address=ADDRESS
    # Nodes, not pods, mount the volumes, and they do not ask the cluster's name server.
    overlay "nfs $components" "$disk
  - target: {kind: PersistentVolume}
    patch: |
      - {op: replace, path: /spec/nfs/server, value: $address}$copies" apply
    until_true "$READY_TIMEOUT" "the pod files, in image $IMAGE${RESULTS_BUCKET:+, with bucket $RESULTS_BUCKET}" files_is_ready
    remember_disks
    rolled_out wait --for condition=Complete job/load-data
}

files_is_ready() { # fails at once, and for good, where the image cannot be pulled or does not start
    local state
    # The NFS server has the same image, and is first to show that it cannot be pulled: files waits for its volumes.
    state=$(asked "${KUBECTL[@]}" get pods -l 'app in (files,nfs)' -o \
        'jsonpath={range .items[*].status}{.containerStatuses[0].ready} {.initContainerStatuses[*].state.waiting.reason} {.containerStatuses[*].state.waiting.reason}{"\n"}{end}') ||
        return
    case $state in
        *ErrImagePull* | *ImagePullBackOff* | *InvalidImageName*)
            say "gke.sh: the nodes cannot pull $IMAGE: does it exist, and may their service account read it?"
            say "gke.sh: (gcloud artifacts repositories add-iam-policy-binding, see k8s/README.md)"
            exit 1
            ;;
        *CrashLoopBackOff*)
            say "gke.sh: a container of $IMAGE does not start: kubectl logs files, kubectl logs deployment/nfs"
            exit 1
            ;;
    esac
    ((dry)) || [[ $state == true*$'\n'true* ]]
}

remember_disks() {
    local handles
    handles=$(asked "${KUBECTL[@]}" get persistentvolumes -o 'jsonpath={.items[*].spec.csi.volumeHandle}') || return
    ((!dry)) || return 0
    mkdir -p "$RESULTS"
    printf '%s\n' $handles | sed '/^$/d; s#.*/##' >"$DISK_NAMES"
}

none_left() { # KIND FILTER OPTIONS...: delete what exists; succeeds once nothing does
    local kind=$1 found name
    found=$(names "$1" "$2") || return
    shift 2
    ((!dry)) || found=NAME
    for name in $found; do
        # It may fail now and succeed later: a cluster that is still being made cannot be deleted.
        # shellcheck disable=SC2086
        limited "$DELETE_TIMEOUT" "${GCLOUD[@]}" $kind delete "$name" "$@" ||
            say "gke.sh: $kind $name was not deleted (status $?): tried again until $DELETE_TIMEOUT s have passed"
    done
    ((dry)) || [[ -z $found ]]
}

empty_cluster() { # jobs, pods and claims, and then the volumes, whose disks the cluster deletes
    local kinds
    # `delete` deletes nothing at all where it does not know one of the kinds: an operator that is not there has none.
    kinds=$(asked "${KUBECTL[@]}" get customresourcedefinitions mpijobs.kubeflow.org trainjobs.trainer.kubeflow.org \
        --ignore-not-found -o name) || return
    ((!dry)) || kinds=mpijobs.kubeflow.org
    kinds=$(sed 's#.*/##' <<<"$kinds" | paste -sd ,)
    rolled_out delete "${kinds:+$kinds,}deployment,job,pod,pvc" --all --ignore-not-found || return
    # A volume of Google's driver has the name of its disk.
    # shellcheck disable=SC2046  # several names
    [[ ! -s $DISK_NAMES ]] || rolled_out wait --for delete $(sed 's#^#persistentvolume/#' "$DISK_NAMES")
}

down() {
    local disks=$ITS_DISKS
    owed=0
    trap 'warn; exit 130' INT
    trap 'warn; exit 143' TERM HUP
    # While the cluster is there it can delete its disks by itself. Their names first, if they can still be had.
    [[ -e $DISK_NAMES ]] || remember_disks || say "gke.sh: the cluster does not tell its disks: looked for by label alone"
    empty_cluster || say "gke.sh: the cluster's volumes were not deleted by itself: their disks are deleted below"
    [[ ! -s $DISK_NAMES ]] || disks="$ITS_DISKS OR name=($(paste -sd ' ' "$DISK_NAMES"))"
    if until_true "$DELETE_TIMEOUT" "deleting the cluster" none_left "container clusters" "$THIS_CLUSTER" --zone "$ZONE" &&
        until_true "$DELETE_TIMEOUT" "deleting its disks" none_left "compute disks" "$disks" --zone "$ZONE" &&
        { [[ $NETWORK ]] || until_true "$DELETE_TIMEOUT" "deleting its network" none_left "compute networks" "$THIS_NETWORK"; }; then
        ((!dry)) || return 0
        say "nothing is left of $CLUSTER"
        bill
        rm -f "$DISK_NAMES" "$BILL"
    else
        warn
        return 1
    fi
}

warn() {
    say ""
    say "!! Cluster $CLUSTER in $ZONE of project $PROJECT MAY STILL EXIST AND COST MONEY."
    say "!! Look:   ${GCLOUD[*]} container clusters list"
    bill
    say "!! Delete: PROJECT=$PROJECT ZONE=$ZONE CLUSTER=$CLUSTER k8s/gke.sh down"
}
