# shellcheck shell=bash
# Dollars, by the list prices in k8s/prices.csv.

price() { # ITEM SPOT: per hour; an unknown one counts nothing, and is said
    local value
    value=$(awk -F, -v item="$1" -v column=$(($2 ? 3 : 2)) '$1 == item {print $column}' "$HERE/prices.csv")
    [[ $value ]] || say "gke.sh: warning: $1 is not in k8s/prices.csv, so it is left out of the cost: add a line for it"
    printf '%s' "${value:-0}"
}

hourly() { # NODES: of a cluster with so many GPU nodes
    local machine gpu fee main
    machine=$(price "$MACHINE" "$SPOT")
    gpu=$(price "$GPU" "$SPOT")
    fee=$(price cluster 0)
    main=$(price "$MAIN_MACHINE" 0)
    awk "BEGIN {printf \"%.2f\", $1 * ($machine + $GPUS_PER_NODE * $gpu) + $fee + $MAIN_NODES * $main}"
}

budget() {
    local rate most seconds
    rate=$(hourly "$MOST_NODES")
    seconds=$((2 * CREATE_TIMEOUT + 3 * READY_TIMEOUT + $(wc -w <<<"$PARTS") * SEARCH_TIMEOUT + DELETE_TIMEOUT))
    most=$(awk "BEGIN {printf \"%.2f\", $rate * $seconds / 3600}")
    echo "budget: $rate USD per hour with $MOST_NODES nodes of $MACHINE; at most $most USD until all timeouts have passed"
    echo "budget: disks and network traffic are not in it; GPU nodes end by themselves after $(pool_seconds) s"
}

pool_seconds() { # GPU nodes do not outlive this, whatever becomes of the machine that runs gke.sh
    echo $((READY_TIMEOUT + $(wc -w <<<"$PARTS") * SEARCH_TIMEOUT))
}

cost() {
    local rate seconds journal=$RESULTS/$SEARCH/journal.jsonl
    rate=$(hourly "$MOST_NODES")
    echo "cluster: $rate USD per hour, $MOST_NODES nodes of $MACHINE, by the list prices in k8s/prices.csv"
    if [[ -e $journal ]]; then
        seconds=$(sed -n 's/^{"end":{.*"seconds":\([0-9.]*\).*/\1/p' "$journal" | awk '{sum += $1} END {print sum + 0}')
        awk "BEGIN {printf \"search: %.2f USD for %.0f s\n\", $rate * $seconds / 3600, $seconds}"
    fi
}

scaling() { # the last training of each number of nodes in one table with its cost, and the figure
    local part table=$RESULTS/ddp.csv row
    ((!dry)) || return 0
    for part in $PARTS; do
        row=$(tail -n 1 "$RESULTS/ddp-$part/ddp.csv")
        [[ -e $table ]] || echo "$(head -n 1 "$RESULTS/ddp-$part/ddp.csv"),cost_usd" >"$table"
        # Column 6 is seconds.
        awk -F, -v row="$row" -v rate="$(hourly "$part")" \
            'BEGIN {split(row, of, ","); printf "%s,%.4f\n", row, rate * of[6] / 3600}' >>"$table"
    done
    python3 -m mpitune scaling "$table" --into "$RESULTS" ||
        say "gke.sh: no figure; with the package installed: python -m mpitune scaling $table --into $RESULTS"
}
