# shellcheck shell=bash
# Dollars, by the list prices in k8s/prices.csv.

price() { # ITEM SPOT: per hour; an unknown one counts nothing, and is said
    local value=""
    [[ $1 != none ]] || value=0
    [[ $value ]] || value=$(awk -F, -v item="$1" -v column=$(($2 ? 3 : 2)) '$1 == item {print $column}' "$HERE/prices.csv")
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

unpriced() { # what the cluster has, without a price
    price "$MACHINE" 0 2>&1 >/dev/null
    price "$GPU" 0 2>&1 >/dev/null
    price "$MAIN_MACHINE" 0 2>&1 >/dev/null
}

prices() { # per hour, for 1, 2, 4 ... 32 nodes
    local n
    echo "USD per hour, by the list prices in k8s/prices.csv: $GPUS_PER_NODE $GPU in each $MACHINE, and $MAIN_NODES $MAIN_MACHINE"
    printf '%5s %5s %10s %10s\n' nodes GPUs "on demand" spot
    for n in 1 2 4 8 16 32; do
        printf '%5d %5d %10s %10s\n' $n $((n * GPUS_PER_NODE)) "$(SPOT=0 hourly $n 2>/dev/null)" "$(SPOT=1 hourly $n 2>/dev/null)"
    done
    unpriced >&2
}

budget() {
    local rate most part terms
    rate=$(hourly "$MOST_NODES")
    terms="$rate * $((CREATE_TIMEOUT + 2 * READY_TIMEOUT + DELETE_TIMEOUT))"
    for part in $PARTS; do
        terms+=" + $(hourly "$part" 2>/dev/null) * $((CREATE_TIMEOUT + READY_TIMEOUT + SEARCH_TIMEOUT))"
    done
    most=$(awk "BEGIN {printf \"%.2f\", ($terms) / 3600}")
    echo "budget: $rate USD per hour with $MOST_NODES nodes of $MACHINE; at most $most USD until all timeouts have passed"
    echo "budget: disks and network traffic are not in it; the nodes of the search end by themselves after $(pool_seconds) s"
}

pool_seconds() { # GPU nodes do not outlive this, whatever becomes of the machine that runs gke.sh
    local n
    n=$(wc -w <<<"$PARTS")
    echo $((READY_TIMEOUT + n * SEARCH_TIMEOUT + (n - 1) * (CREATE_TIMEOUT + READY_TIMEOUT)))
}

held() { # NODES: so many GPU nodes are paid from now on, and the cluster
    ((!dry)) || return 0
    mkdir -p "$RESULTS"
    echo "$(date +%s) $(hourly "$1" 2>/dev/null)" >>"$BILL"
}

bill() { # what the cluster has cost so far: each rate from when it was asked for until the next
    local bound="at most"
    [[ -e $BILL ]] || return 0
    unpriced >&2
    [[ -z $(unpriced) ]] || bound="and what has no price (above)"
    awk -v now="$(date +%s)" -v bound="$bound" '
        NR > 1 {sum += rate * ($1 - since)}
        {since = $1; rate = $2; first = first ? first : $1}
        END {
            sum += rate * (now - since)
            printf "in all: %.2f USD %s for %d s of the cluster, by list prices; without disks and traffic\n", sum / 3600, bound, now - first
        }' "$BILL"
}

cost() {
    local rate seconds journal=$RESULTS/$SEARCH/journal.jsonl
    rate=$(hourly "${NODES##* }")
    echo "cluster: $rate USD per hour, ${NODES##* } nodes of $MACHINE, by the list prices in k8s/prices.csv"
    if [[ -e $journal ]]; then
        seconds=$(sed -n 's/^{"end":{.*"seconds":\([0-9.]*\).*/\1/p' "$journal" | awk '{sum += $1} END {print sum + 0}')
        awk "BEGIN {printf \"search: %.2f USD for %.0f s\n\", $rate * $seconds / 3600, $seconds}"
    fi
}

table_row() { # the training that was fetched, with the cost of its time: all nodes that are held take part in it
    local head row from=$RESULTS/ddp-$NODES/ddp.csv table=$RESULTS/ddp.csv
    ((!dry)) || return 0
    head="$(head -n 1 "$from"),cost_usd"
    # A table of an earlier version, with other columns, stays beside it.
    [[ ! -e $table || $(head -n 1 "$table") == "$head" ]] || mv "$table" "$table.$(date +%s)"
    [[ -e $table ]] || echo "$head" >"$table"
    row=$(awk -F, -v rate="$(hourly "$NODES")" '
        NR == 1 {for (i = 1; i <= NF; i++) if ($i == "seconds") column = i}
        {row = $0; seconds = $column}
        END {printf "%s,%.4f\n", row, rate * seconds / 3600}' "$from")
    grep -qxF -- "$row" "$table" || echo "$row" >>"$table" # it is there already where nothing was trained again
}
