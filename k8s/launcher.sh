#!/bin/bash
# The launcher of an MPIJob: mpirun on all workers, again and again while that brings the study on.
#
# Exit status: 0 when the study is complete, also if trials have failed, since they would fail again; 75 when it was told
# to go (running trials may finish first); else 1 or 2, once TRIES attempts in a row have finished no trial. Another one
# would not help, so the launcher also sets the backoffLimit of its own Kubernetes Job to 0: the MPI operator then
# declares the MPIJob failed and removes the workers, and their nodes cost nothing any more.
#
# A worker that is Failed, since its node was preempted or it was evicted, stays so for ever: the operator makes a worker
# only where there is none. The launcher deletes such workers and waits for new ones, at most WAIT seconds, then goes on
# with those that answer to ssh. An attempt that lost a worker does not count as one that failed. Without the right to ask
# the cluster (base/launcher.yaml) nothing is deleted, and a failed launcher is followed by another one, up to backoffLimit.
#
# Settings, as variables: SEARCH (program and its arguments), OPTIONS, RESULTS, TRIES, WAIT, PAUSE (seconds).
set -uf

HOSTFILE=${HOSTFILE:-/etc/mpi/hostfile}
ACCOUNT=${ACCOUNT:-/var/run/secrets/kubernetes.io/serviceaccount}
TRIES=${TRIES:-3} WAIT=${WAIT:-900} PAUSE=${PAUSE:-30}
job=$(hostname)  # the operator gives the pod the name of its Job
namespace=$(cat "$ACCOUNT/namespace" 2>/dev/null)
labels=training.kubeflow.org%2Fjob-name%3D${job%-launcher}%2Ctraining.kubeflow.org%2Fjob-role%3Dworker
chosen=$(mktemp)  # the hostfile of an attempt
mpirun='' told='' refused=''

say() { echo "launcher: $*" >&2; }

# ask METHOD PATH [OPTION OF CURL...]: as this pod's account, if it has one. That it is refused is said once.
ask() {
    local method=$1 path=$2 code
    shift 2
    [[ -e $ACCOUNT/token ]] || return
    code=$(curl --silent --max-time 10 --output /dev/null --write-out '%{http_code}' --cacert "$ACCOUNT/ca.crt" "$@" \
        --header "Authorization: Bearer $(cat "$ACCOUNT/token")" --request "$method" \
        "https://$KUBERNETES_SERVICE_HOST:${KUBERNETES_SERVICE_PORT:-443}$path")
    [[ $code == 2* || $refused ]] && return
    refused=1
    say "the cluster refuses $method $path ($code): is the Role in k8s/base/launcher.yaml applied?"
}

# The lines of the hostfile whose workers answer.
ready() {
    local line
    while read -r line; do
        ssh -o ConnectTimeout=5 -o BatchMode=yes "${line%% *}" true </dev/null >/dev/null 2>&1 && echo "$line" &
    done <"$HOSTFILE" | sort -V
}

wait_for_workers() {
    local end=$((SECONDS + WAIT)) all said='' text
    all=$(wc -l <"$HOSTFILE")
    while true; do
        ready >"$chosen"
        (($(wc -l <"$chosen") == all)) && return
        text="$(wc -l <"$chosen") of $all workers are ready"
        [[ $text == "$said" ]] || say "$text"
        said=$text
        ask DELETE "/api/v1/namespaces/$namespace/pods?fieldSelector=status.phase%3DFailed&labelSelector=$labels"
        [[ -s $chosen ]] && ((SECONDS >= end)) && return
        pause 1
    done
}

finished() { python -m mpitune status "$RESULTS" 2>/dev/null | awk '$1 == "trials" { n = $2 } END { print n + 0 }'; }

complete() {
    python -m mpitune status "$RESULTS" >/dev/null 2>&1
    (($? == 0 || $? == 3))
}

# A signal ends the pause, not only after it.
pause() { sleep "$1" & wait $!; }

stop() {
    told=1
    [[ $mpirun ]] || exit 75
    kill -USR1 "$mpirun" 2>/dev/null
}
trap stop TERM

in_vain=0 before=$(finished)
while true; do
    wait_for_workers
    declare -a program="($SEARCH)" extra="(${OPTIONS:-})"
    mpirun --hostfile "$chosen" --map-by ppr:1:node --bind-to none --prtemca oob_tcp_keepalive_time 2 \
        --prtemca oob_tcp_keepalive_intvl 2 --prtemca oob_tcp_keepalive_probes 2 python -m "${program[@]}" --data /data \
        --results "$RESULTS" "${extra[@]}" --expect-nodes "$(wc -l <"$chosen")" &
    mpirun=$!
    wait $mpirun
    status=$?
    while kill -0 $mpirun 2>/dev/null; do  # a signal has ended the waiting
        wait $mpirun
        status=$?
    done
    mpirun=''
    # mpirun may end with 0 although a node was lost, so the journal has the last word.
    if ((status == 0 || status == 3)) && complete; then exit 0; fi
    [[ $told ]] && exit 75
    now=$(finished) gained=$((now - before)) before=$now
    lost=$(comm -23 <(sort "$chosen") <(ready | sort) | cut -d . -f 1 | paste -sd ' ')
    if ((gained > 0)); then in_vain=0; elif [[ -z $lost ]]; then ((in_vain += 1)); fi
    say "mpirun ended with $status; $gained trials finished; workers lost: ${lost:-none}"
    if ((in_vain == TRIES)); then
        say "$in_vain attempts in a row finished no trial, for the cause above: the job is ended for good"
        ask PATCH "/apis/batch/v1/namespaces/$namespace/jobs/$job" --data '{"spec": {"backoffLimit": 0}}' \
            --header "Content-Type: application/merge-patch+json"
        ((status == 1 || status == 2)) && exit "$status"
        exit 1
    fi
    pause "$PAUSE"
done
