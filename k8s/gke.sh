#!/usr/bin/env bash
# A search on Google Kubernetes Engine: from nothing to figures, and nothing left behind.
#
#   IMAGE=REGISTRY/search:gpu k8s/gke.sh
#
# It runs these, which can also be run by hand, one after the other, with the same settings:
#
#   k8s/gke/create.sh    network, cluster, storage, data, operator, and the nodes of the search last
#   k8s/gke/search.sh    start the search, or go on with it, and copy its results to ./results until it has ended
#   k8s/gke/cost.sh      dollars per hour by number of nodes; what the cluster has cost
#   k8s/gke/delete.sh    delete all of it, and look that it has gone
#
# The settings are the variables in k8s/gke/settings.sh; DRY_RUN=yes prints every command and runs none. After a failure or
# an interrupt the cluster is deleted too, unless it holds results of a complete search that could not be copied.
set -euo pipefail
gke=$(cd "$(dirname "${BASH_SOURCE[0]}")/gke" && pwd)

at_exit() {
    local status=$?
    trap - EXIT
    "$gke/cost.sh" || true
    "$gke/delete.sh" || status=$((status ? status : 1))
    exit "$status"
}
trap at_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

leave() { # STATUS IF: with this status the cluster is left as it is
    (($1 != $2)) || trap - EXIT
    exit "$1"
}
"$gke/create.sh" || leave $? 2 # nothing was made
"$gke/search.sh" || leave $? 4 # the results are on the cluster alone
