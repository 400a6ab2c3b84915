#!/usr/bin/env bash
# SEARCH on the cluster that create.sh has made, its results in ./results. With SEARCH=ddp there is a training for each of
# NODES, and the nodes grow with it until so many cannot be had. What was interrupted or has failed goes on where it was.
# Status 4: the search is complete, but its results could not be copied and are on the cluster alone.
set -euo pipefail
# shellcheck source=k8s/gke/settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
needs_image

# What a pod, which takes all GPUs of its node, may ask of it: the rest is for GKE and its own pods.
read -r cpus memory <<<"$(awk -F, -v item="$MACHINE" '$1 == item && $6 {print $6, $7}' "$K8S/prices.csv")"
[[ $cpus ]] || read -r cpus memory <<<"$(gcloud compute machine-types describe "$MACHINE" --zone "$ZONE" \
    --format 'value(guestCpus,memoryMb)')"
[[ $cpus ]] || refuse "the size of MACHINE=$MACHINE is not known: add a line to k8s/prices.csv"
((cpus >= 4 * GPUS_PER_NODE)) ||
    say "search.sh: warning: $MACHINE has $cpus CPUs for $GPUS_PER_NODE GPUs: with fewer than 4 for each, training waits for CPUs"
((THREADS_PER_CORE != 1)) || cpus=$((cpus / 2))
memory=$((memory * 3 / 4 - 1024))
gpus="" pool="cloud.google.com/gke-nodepool: workers"
[[ $GPU == none ]] || gpus=", nvidia.com/gpu: $GPUS_PER_NODE" pool="cloud.google.com/gke-accelerator: $GPU"
whole="{requests: {cpu: $((cpus * 970 - 500))m, memory: ${memory}Mi$gpus}, limits: {memory: ${memory}Mi$gpus}}"

mpijob() { # its manifest
    local launcher=/spec/mpiReplicaSpecs/Launcher/template/spec worker=/spec/mpiReplicaSpecs/Worker command=$COMMAND
    [[ $command || $SEARCH != svm ]] || command="mnist_svm 24$([[ $GPU == none ]] || echo " --solver cuml")"
    PATCHES="  - target: {kind: MPIJob}
    patch: |
      - {op: replace, path: /spec/runPolicy/activeDeadlineSeconds, value: $SEARCH_TIMEOUT}
      - {op: replace, path: $launcher/containers/0/env/0/value, value: \"${command:-mnist_nn 10 20}\"}
      - {op: replace, path: $launcher/containers/0/env/2/value, value: \"$OPTIONS\"}
      - {op: replace, path: $worker/replicas, value: $NODES}
      - {op: replace, path: $worker/template/spec/nodeSelector, value: {$pool}}
      - {op: replace, path: $worker/template/spec/containers/0/resources, value: $whole}" "$K8S/show.sh" "$SEARCH" gke
}

trainjob() { # NODES: its manifest
    local words=$OPTIONS pod=/spec/runtimePatches/0/trainingRuntimeSpec/template/spec/replicatedJobs/0/template/spec/template/spec
    case $words in
        "--gpu all") words="--batch-size 128 --epochs 20 --backend nccl" ;;
        "--gpu none") words="--batch-size 128 --epochs 20 --backend gloo" ;;
    esac
    # shellcheck disable=SC2086  # they are words
    words=$(printf '"%s", ' $words)
    PATCHES="  - target: {kind: TrainJob}
    patch: |
      - {op: replace, path: /spec/activeDeadlineSeconds, value: $SEARCH_TIMEOUT}
      - {op: replace, path: /spec/trainer/args, value: [${words}--data, /data, --results, /results/ddp-$1, --resume]}
      - {op: replace, path: /spec/trainer/numNodes, value: $1}
      - {op: replace, path: /spec/trainer/numProcPerNode, value: $((GPUS_PER_NODE ? GPUS_PER_NODE : 1))}
      - {op: replace, path: /spec/trainer/resourcesPerNode, value: $whole}
      - {op: replace, path: $pod/nodeSelector, value: {$pool}}
      - {op: test, path: $pod/volumes/2/name, value: shm}
      - {op: replace, path: $pod/volumes/2/emptyDir/sizeLimit, value: $((memory / 2))Mi}" "$K8S/show.sh" trainjob gke
}

bring_back() { # FOLDER: results of an earlier cluster, where this one has none of its own
    local absent
    # Copies go to the bucket from within the cluster, so they may be newer than those here.
    [[ -z $RESULTS_BUCKET ]] || kubectl exec files --container copies -- \
        sh -c "[ -e /results/$1 ] || [ ! -e /bucket/$1 ] || cp -r /bucket/$1 /results/"
    [[ -e $RESULTS/$1 ]] || return 0
    absent=$(kubectl exec files -- sh -c "[ -e /results/$1 ] || echo absent")
    [[ -z $absent ]] || kubectl cp "$RESULTS/$1" files:/results
}

fetch() { # FOLDER: a whole copy takes the place of the one before
    if ! dry; then
        mkdir -p "$RESULTS"
        rm -rf "$RESULTS/$1.new"
    fi
    kubectl cp "files:/results/$1" "$RESULTS/$1.new" || return
    dry || { rm -rf "${RESULTS:?}/$1" && mv "$RESULTS/$1.new" "$RESULTS/$1"; } || return
    [[ -z $RESULTS_BUCKET ]] || kubectl exec files --container copies -- \
        flock /tmp/copies cp -ru --preserve=timestamps /results/. /bucket/ || say "no copy to gs://$RESULTS_BUCKET now"
}

follow() { # JOB FOLDER: until it has ended; fails where it did
    local state end=$((SECONDS + SEARCH_TIMEOUT + READY_TIMEOUT)) next=$((SECONDS + FETCH_EVERY))
    while true; do
        state=$(kubectl --request-timeout 60s get "$1" -o 'jsonpath={.status.conditions[?(@.status=="True")].type}') || state=
        ! dry || state=Complete
        case " $state " in
            *" Complete "*) return 0 ;;
            *" Failed "*) return 1 ;;
        esac
        ((SECONDS < end)) || return 1
        if ((SECONDS >= next)); then
            kubectl exec files -- python -m mpitune status "/results/$2" || true
            fetch "$2" || say "no results could be copied now: tried again later"
            next=$((SECONDS + FETCH_EVERY))
        fi
        sleep "$POLL"
    done
}

apply() { kubectl apply -f - <<<"$1"; }

search() { # KIND/NAME JOB FOLDER MANIFEST: JOB says how it ends
    bring_back "$3"
    # To apply a job that has ended changes nothing: it is deleted and made anew.
    kubectl delete "$1" --ignore-not-found --cascade foreground
    again 300 apply "$4" # a webhook may not answer yet
    follow "$2" "$3" || {
        fetch "$3" || say "no results could be copied after the failure: the last copy is in $RESULTS"
        say "search.sh: $2 has failed: kubectl describe $2; started again, it goes on where it was"
        exit 1
    }
    fetch "$3" || {
        say "search.sh: the results are on the cluster alone, which costs money: k8s/gke/search.sh, then k8s/gke/delete.sh"
        exit 4
    }
}

table_row() { # NODES: the training that was fetched, with the cost of its time
    local row table=$RESULTS/ddp.csv
    ! dry || return 0
    row=$(awk -F, -v rate="$("$K8S/gke/cost.sh" "$1")" '
        NR == 1 {for (i = 1; i <= NF; i++) if ($i == "seconds") column = i; print $0 ",cost_usd"}
        {row = $0; seconds = $column}
        END {printf "%s,%.4f\n", row, rate * seconds / 3600}' "$RESULTS/ddp-$1/ddp.csv")
    [[ -e $table ]] || head -n 1 <<<"$row" >"$table"
    # It is there already where nothing was trained again.
    grep -qxF -- "$(tail -n 1 <<<"$row")" "$table" || tail -n 1 <<<"$row" >>"$table"
}

if [[ $SEARCH != ddp ]]; then
    # An MPIJob with an evicted worker says Failed although its launcher goes on; so the launcher's Job is asked.
    manifest=$(mpijob)
    search "mpijob/$SEARCH" "job/$SEARCH-launcher" "$SEARCH" "$manifest"
    exit
fi
for n in $NODES; do
    [[ $n == "${NODES%% *}" ]] ||
        gcloud container clusters resize "$CLUSTER" --zone "$ZONE" --node-pool workers --num-nodes "$n" || {
        say "search.sh: $n nodes cannot be had (above): the sizes before are all that is trained"
        break
    }
    manifest=$(trainjob "$n")
    search trainjob/ddp trainjob/ddp "ddp-$n" "$manifest"
    table_row "$n"
done
