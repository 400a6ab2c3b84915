# shellcheck shell=bash
# A search on a cluster that is up: submitted, followed, fetched, and submitted again while that brings it on.

search_command() {
    case ${COMMAND:+given}$SEARCH in
        given*) echo "$COMMAND" ;;
        svm) echo "mnist_svm 24$([[ $GPU == none ]] || echo " --solver cuml")" ;;
        nn) echo "mnist_nn 10 20" ;;
    esac
}

folder() { # of the results
    if [[ $SEARCH == ddp ]]; then echo "ddp-$NODES"; else echo "$SEARCH"; fi
}

ddp_options() {
    case $OPTIONS in
        "--gpu all") echo "--batch-size 128 --epochs 20 --backend nccl" ;;
        "--gpu none") echo "--batch-size 128 --epochs 20 --backend gloo" ;;
        *) echo "$OPTIONS" ;;
    esac
}

measure() { # sets CPUS and MEMORY (MiB): what a pod may ask of a node of MACHINE, all of whose GPUs it takes
    local cpus memory described
    described=$(asked "${GCLOUD[@]}" compute machine-types describe "$MACHINE" --zone "$ZONE" \
        --format 'csv[no-heading](guestCpus,memoryMb)') || refuse "there is no machine $MACHINE in $ZONE"
    ((!dry)) || described=$(awk -F, -v item="$MACHINE" '$1 == item && $6 {print $6 "," $7}' "$HERE/prices.csv")
    [[ $described ]] || {
        say "gke.sh: --dry-run does not know $MACHINE: CPUs and memory below are those of g2-standard-8: add a line to k8s/prices.csv"
        described=8,32768
    }
    IFS=, read -r cpus memory <<<"$described"
    ((cpus >= 4 * GPUS_PER_NODE)) ||
        say "gke.sh: warning: $MACHINE has $cpus CPUs for $GPUS_PER_NODE GPUs: with fewer than 4 for each, training waits for CPUs"
    ((THREADS_PER_CORE != 1)) || cpus=$((cpus / 2))
    # Of memory GKE keeps 25, 20, 10, 6 and 2 % of ever larger parts and 100 MiB; 1 GiB and half a CPU are for its pods.
    read -r CPUS MEMORY <<<"$(awk -v cpus=$cpus -v memory="$memory" '
        function part(low, high) {return memory <= low ? 0 : (memory < high ? memory : high) - low}
        BEGIN {
            kept = part(0, 4096) / 4 + part(4096, 8192) / 5 + part(8192, 16384) / 10 + part(16384, 131072) * 0.06
            kept += part(131072, memory) * 0.02 + 100 + 1024
            printf "%dm %d\n", (cpus * 0.97 - 0.5) * 1000, memory - kept
        }')"
}

pool() { # labels of the nodes that the search is for
    if [[ $GPU == none ]]; then echo "{cloud.google.com/gke-nodepool: workers}"; else echo "{cloud.google.com/gke-accelerator: $GPU}"; fi
}

whole_node() { # what a pod takes of it
    local gpus=""
    [[ $GPU == none ]] || gpus=", nvidia.com/gpu: $GPUS_PER_NODE"
    echo "{requests: {cpu: $CPUS, memory: ${MEMORY}Mi$gpus}, limits: {memory: ${MEMORY}Mi$gpus}}"
}

mpijob() { # KUBECTL COMMAND...
    local launcher=/spec/mpiReplicaSpecs/Launcher/template/spec worker=/spec/mpiReplicaSpecs/Worker
    overlay "$SEARCH gke" "  - target: {kind: MPIJob}
    patch: |
      - {op: replace, path: /spec/runPolicy/activeDeadlineSeconds, value: $SEARCH_TIMEOUT}
      - {op: replace, path: $launcher/containers/0/env/0/value, value: \"$(search_command)\"}
      - {op: replace, path: $launcher/containers/0/env/2/value, value: \"$OPTIONS\"}
      - {op: replace, path: $worker/replicas, value: $NODES}
      - {op: replace, path: $worker/template/spec/nodeSelector, value: $(pool)}
      - {op: replace, path: $worker/template/spec/containers/0/resources, value: $(whole_node)}" "$@"
}

trainjob() { # KUBECTL COMMAND...
    local words pod=/spec/runtimePatches/0/trainingRuntimeSpec/template/spec/replicatedJobs/0/template/spec/template/spec
    words=$(printf '"%s", ' $(ddp_options))
    overlay "trainjob gke" "  - target: {kind: TrainJob}
    patch: |
      - {op: replace, path: /spec/activeDeadlineSeconds, value: $SEARCH_TIMEOUT}
      - {op: replace, path: /spec/trainer/image, value: \"$IMAGE\"}
      - {op: replace, path: /spec/trainer/args, value: [${words}--data, /data, --results, /results/$(folder), --resume]}
      - {op: replace, path: /spec/trainer/numNodes, value: $NODES}
      - {op: replace, path: /spec/trainer/numProcPerNode, value: $((GPUS_PER_NODE ? GPUS_PER_NODE : 1))}
      - {op: replace, path: /spec/trainer/resourcesPerNode, value: $(whole_node)}
      - {op: replace, path: $pod/nodeSelector, value: $(pool)}
      - {op: test, path: $pod/volumes/2/name, value: shm}
      - {op: replace, path: $pod/volumes/2/emptyDir/sizeLimit, value: $((MEMORY / 2))Mi}" "$@"
}

submit() {
    local kind=mpijob
    [[ $SEARCH != ddp ]] || kind=trainjob
    [[ ${MEMORY:-} ]] || measure
    [[ ! -e $BILL ]] || held "$NODES"
    put
    # To apply a job that has ended changes nothing: it is deleted and made anew, and goes on where its results are.
    rolled_out delete $kind "$SEARCH" --ignore-not-found
    $kind apply
}

COPIES=("${KUBECTL[@]}" exec files --container copies --) # in components/bucket

put() { # never over results that the cluster has, which are newer than any copy of them
    local here
    here=$RESULTS/$(folder)
    [[ -e $here/journal.jsonl || -e $here/ddp.csv || $RESULTS_BUCKET ]] || return 0
    if ((!dry)) && asked "${KUBECTL[@]}" exec files -- test -e "/results/$(folder)"; then
        say "gke.sh: the cluster has results of its own in /results/$(folder): none are put there"
    elif [[ $RESULTS_BUCKET ]] && asked "${COPIES[@]}" test -e "/bucket/$(folder)"; then
        # Copies go there from within the cluster, so they may be newer than those here.
        limited "$READY_TIMEOUT" "${COPIES[@]}" cp -r "/bucket/$(folder)" /results/
    elif [[ -e $here ]]; then
        limited "$READY_TIMEOUT" "${KUBECTL[@]}" cp "$here" files:/results
    fi
}

follow() {
    local before now
    before=$(n_finished)
    until follow_once; do
        now=$(n_finished)
        [[ $ended != *DeadlineExceeded* && $now -gt $before && $SECONDS -lt $follow_end ]] || {
            say "gke.sh: the search has failed: $ended"
            return 1
        }
        say "gke.sh: the search has failed ($ended), but finished $((now - before)) trials: it is submitted again"
        before=$now
        submit
    done
}

follow_once() { # until the job has ended
    : "${follow_end:=$((SECONDS + SEARCH_TIMEOUT))}"
    local left
    while ! has_ended; do
        left=$((follow_end - SECONDS))
        ((left > 0)) || {
            ended="no end within $SEARCH_TIMEOUT s"
            return 1
        }
        # The log for a while, then the results so far, and again.
        limited "$((left < FETCH_EVERY ? left : FETCH_EVERY))" kubectl --context "gke_${PROJECT}_${ZONE}_${CLUSTER}" \
            logs --follow --since "${FETCH_EVERY}s" $(log_of) || ((dry)) || sleep "$POLL"
        fetch || say "gke.sh: no results could be copied now: tried again later"
    done
    [[ $ended == Complete* ]]
}

log_of() { # of a training, that of rank 0, whole
    if [[ $SEARCH == ddp ]]; then
        echo --selector "jobset.sigs.k8s.io/jobset-name=ddp,batch.kubernetes.io/job-completion-index=0" --tail=-1
    else
        echo "job/$SEARCH-launcher"
    fi
}

# An MPIJob with an evicted worker says Failed although its launcher goes on; so the launcher's Job is asked.
has_ended() {
    local what=job/$SEARCH-launcher
    [[ $SEARCH != ddp ]] || what=trainjob/ddp
    ended=$(asked "${KUBECTL[@]}" get "$what" -o \
        'jsonpath={range .status.conditions[?(@.status=="True")]}{.type} {.reason} {end}' 2>/dev/null) || ended=
    ((!dry)) || ended=Complete
    case " $ended" in
        *" Complete "* | *" Succeeded "*) ended=Complete ;;
        *" Failed "*) ;;
        *) ((dry)) ;;
    esac
}

n_finished() { # trials in the journal of the cluster; 0 where it does not answer
    ((!dry)) || { echo 0 && return; }
    { asked "${KUBECTL[@]}" exec files -- python -m mpitune status "/results/$(folder)" 2>/dev/null || true; } |
        awk '$1 == "trials" {n = $2} END {print n + 0}'
}

fetch() { # a whole copy takes the place of the one before
    local into
    into=$RESULTS/$(folder)
    run mkdir -p "$RESULTS"
    run rm -rf "$into.new"
    limited "$READY_TIMEOUT" "${KUBECTL[@]}" cp "files:/results/$(folder)" "$into.new" || return
    run rm -rf "$into"
    run mv "$into.new" "$into"
    [[ -z $RESULTS_BUCKET ]] || limited "$READY_TIMEOUT" "${COPIES[@]}" \
        flock /tmp/copies cp -ru --preserve=timestamps /results/. /bucket/ ||
        say "gke.sh: no copy to gs://$RESULTS_BUCKET now"
}
