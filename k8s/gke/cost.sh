#!/usr/bin/env bash
# Dollars, by the list prices in k8s/prices.csv: per hour with 1, 2, 4 ... 32 nodes of MACHINE; of the search that was
# fetched; and of the cluster since it was made. With a number alone: per hour with so many nodes. Disks and traffic are
# left out.
set -euo pipefail
# shellcheck source=k8s/gke/settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

price() { # ITEM SPOT: per hour
    awk -F, -v item="$1" -v column="$([[ $2 == yes ]] && echo 3 || echo 2)" '$1 == item {print $column}' "$K8S/prices.csv"
}

hourly() { # NODES SPOT
    awk -v n="$1" -v machine="$(price "$MACHINE" "$2")" -v gpus="$GPUS_PER_NODE" -v gpu="$(price "$GPU" "$2")" \
        -v fee="$(price cluster no)" -v mains="$MAIN_NODES" -v main="$(price "$MAIN_MACHINE" no)" \
        'BEGIN {printf "%.2f\n", n * (machine + gpus * gpu) + fee + mains * main}'
}

for item in "$MACHINE" "$MAIN_MACHINE" $([[ $GPU == none ]] || echo "$GPU"); do
    [[ $(price "$item" no) ]] || say "cost.sh: warning: $item is not in k8s/prices.csv, so it is left out: add a line for it"
done
if (($#)); then
    hourly "$1" "$SPOT"
    exit
fi

echo "USD per hour: $GPUS_PER_NODE $GPU in each $MACHINE, and $MAIN_NODES $MAIN_MACHINE"
printf '%5s %5s %10s %10s\n' nodes GPUs "on demand" spot
for n in 1 2 4 8 16 32; do
    printf '%5d %5d %10s %10s\n' $n $((n * GPUS_PER_NODE)) "$(hourly $n no)" "$(hourly $n yes)"
done

rate=$(hourly "${NODES##* }" "$SPOT")
journal=$RESULTS/$SEARCH/journal.jsonl
if [[ -e $journal ]]; then
    seconds=$(sed -n 's/^{"end":{.*"seconds":\([0-9.]*\).*/\1/p' "$journal" | awk '{sum += $1} END {print sum + 0}')
    awk "BEGIN {printf \"search: %.2f USD for %.0f s\n\", $rate * $seconds / 3600, $seconds}"
fi
made=$(gcloud container clusters list --filter "name=$CLUSTER AND location=$ZONE" --format 'value(createTime)' 2>/dev/null) || made=
if [[ $made ]]; then
    seconds=$(($(date +%s) - $(date -d "$made" +%s)))
    awk "BEGIN {printf \"cluster: %.2f USD at most for %d s, as if it had always had ${NODES##* } nodes\n\", $rate * $seconds / 3600, $seconds}"
fi
