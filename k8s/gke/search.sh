#!/usr/bin/env bash
# SEARCH on the cluster that create.sh has made, its results in ./results. What was interrupted or has failed goes on where
# it was. Status 4: the search is complete, but its results could not be copied and are on the cluster alone.
set -euo pipefail
# shellcheck source=k8s/gke/settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

# What a pod, which takes all GPUs of its node, may ask of it: the rest is for GKE and its own pods. A core is two CPUs.
read -r cpu memory <<<"$(awk -F, -v item="$MACHINE" '$1 == item {print $6 * 485 - 500 "m", $7 * 0.75 - 1024 "Mi"}' "$K8S/prices.csv")"
gpus="" command="mnist_nn 10 20"
[[ $GPU == none ]] || gpus=", nvidia.com/gpu: $GPUS_PER_NODE"
[[ $SEARCH != svm ]] || command="mnist_svm 24${gpus:+ --solver cuml}"
launcher=/spec/mpiReplicaSpecs/Launcher/template/spec/containers/0/env worker=/spec/mpiReplicaSpecs/Worker
manifest=$(PATCHES="  - target: {kind: MPIJob}
    patch: |
      - {op: replace, path: /spec/runPolicy/activeDeadlineSeconds, value: $SEARCH_TIMEOUT}
      - {op: replace, path: $launcher/0/value, value: \"${COMMAND:-$command}\"}
      - {op: replace, path: $launcher/2/value, value: \"$OPTIONS\"}
      - {op: replace, path: $worker/replicas, value: $NODES}
      - {op: replace, path: $worker/template/spec/nodeSelector, value: {cloud.google.com/gke-nodepool: workers}}
      - op: replace
        path: $worker/template/spec/containers/0/resources
        value: {requests: {cpu: $cpu, memory: $memory$gpus}, limits: {memory: $memory$gpus}}" "$K8S/show.sh" "$SEARCH" gke)

fetch() { # a whole copy takes the place of the one before
    dry || { mkdir -p "$RESULTS" && rm -rf "$RESULTS/$SEARCH.new"; } || return
    kubectl cp "files:/results/$SEARCH" "$RESULTS/$SEARCH.new" || return
    dry || { rm -rf "${RESULTS:?}/$SEARCH" && mv "$RESULTS/$SEARCH.new" "$RESULTS/$SEARCH"; }
}

# Results of an earlier cluster, where this one has none of its own.
if [[ -e $RESULTS/$SEARCH ]]; then
    absent=$(kubectl exec files -- sh -c "rm -rf /results/$SEARCH.new; [ -e /results/$SEARCH ] || echo absent")
    [[ -z $absent ]] || { kubectl cp "$RESULTS/$SEARCH" "files:/results/$SEARCH.new" &&
        kubectl exec files -- mv "/results/$SEARCH.new" "/results/$SEARCH"; }
fi
kubectl delete "mpijob/$SEARCH" --ignore-not-found --cascade foreground # to apply a job that has ended changes nothing
kubectl apply -f - <<<"$manifest"
# An MPIJob with an evicted worker says Failed although its launcher goes on; so the launcher's Job is asked.
job=job/$SEARCH-launcher end=$((SECONDS + SEARCH_TIMEOUT + 900)) next=$((SECONDS + FETCH_EVERY)) state=
until dry || [[ " $state " == *" Complete "* ]]; do
    sleep "$POLL"
    state=$(kubectl --request-timeout 60s get "$job" -o 'jsonpath={.status.conditions[?(@.status=="True")].type}') || state=
    if [[ " $state " == *" Failed "* ]] || ((SECONDS > end)); then
        fetch || say "no results could be copied after the failure: the last copy is in $RESULTS"
        say "search.sh: $job has failed: kubectl describe $job; started again, it goes on where it was"
        exit 1
    elif ((SECONDS > next)); then
        fetch || say "no results could be copied now: tried again later"
        next=$((SECONDS + FETCH_EVERY))
    fi
done
fetch || {
    say "search.sh: the results are on the cluster alone, which costs money: k8s/gke/search.sh, then k8s/gke/delete.sh"
    exit 4
}
