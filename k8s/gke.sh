#!/usr/bin/env bash
# A search on Google Kubernetes Engine: from nothing to figures, and nothing left behind.
#
#   IMAGE=REGISTRY/search:gpu k8s/gke.sh
#
# It runs these, which can also be run by hand, one after the other, with the same settings:
#
#   k8s/gke/create.sh    network, cluster, storage, data, operator, and the nodes of the search last
#   k8s/gke/search.sh    start the search, or go on with it, and copy its results to ./results until it has ended
#   k8s/gke/cost.sh      dollars per hour by number of nodes; what the search and the cluster have cost
#   k8s/gke/delete.sh    delete all of it, and look that it has gone
#
# The settings are the variables in k8s/gke/settings.sh; DRY_RUN=yes prints every command and runs none. After a failure or
# an interrupt the cluster is deleted too, unless it holds results of a complete search that could not be copied.
set -euo pipefail
if (($#)); then
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
    exit 2
fi

gke=$(cd "$(dirname "${BASH_SOURCE[0]}")/gke" && pwd)
made=1

at_exit() {
    local status=$?
    trap - EXIT
    if ((made)); then
        "$gke/cost.sh" || true
        "$gke/delete.sh" || status=$((status ? status : 1))
    fi
    exit "$status"
}
trap at_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

run() { # SCRIPT STATUS: with this status it leaves the cluster as it is
    local status=0
    "$gke/$1" || status=$?
    ((status != $2)) || made=0
    ((!status)) || exit "$status"
}
run create.sh 2 # nothing was made
run search.sh 4 # the results are on the cluster alone
