#!/usr/bin/env bash
# Dollars by the list prices in k8s/prices.csv, without disks and traffic: per hour with 1, 2, 4 ... 32 nodes of MACHINE, and
# at most of the cluster since it was made, as if it had always had NODES nodes.
set -euo pipefail
# shellcheck source=k8s/gke/settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

made=$(gcloud container clusters list --filter "name=$CLUSTER AND location=$ZONE" --format 'value(createTime)' 2>/dev/null) || made=
awk -F, -v machine="$MACHINE" -v gpu="$GPU" -v gpus="$GPUS_PER_NODE" -v main="$MAIN_MACHINE" -v mains="$MAIN_NODES" \
    -v nodes="$NODES" -v column="$([[ $SPOT == yes ]] && echo 3 || echo 2)" \
    -v seconds="$([[ -z $made ]] || echo $(($(date +%s) - $(date -d "$made" +%s))))" '
    function hourly(n, column) {
        return n * (price[machine, column] + gpus * price[gpu, column]) + price["cluster", 2] + mains * price[main, 2]
    }
    {price[$1, 2] = $2; price[$1, 3] = $3}
    END {
        printf "USD per hour: %d %s in each %s, and %d %s\n", gpus, gpu, machine, mains, main
        printf "%5s %5s %10s %10s\n", "nodes", "GPUs", "on demand", "spot"
        for (n = 1; n <= 32; n *= 2) printf "%5d %5d %10.2f %10.2f\n", n, n * gpus, hourly(n, 2), hourly(n, 3)
        if (seconds) printf "cluster: %.2f USD at most for %d s\n", hourly(nodes, column) * seconds / 3600, seconds
    }' "$K8S/prices.csv"
