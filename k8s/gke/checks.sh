# shellcheck shell=bash
# What would fail after money was spent, looked at before.

settings() { # COMMAND
    [[ $IMAGE =~ ^[^:]+(:[0-9]+/[^:]+)?:[^:/]+$ ]] ||
        refuse "IMAGE=$IMAGE has no tag: give REGISTRY/search:TAG, built from k8s/Containerfile"
    case $SEARCH in svm | nn | ddp) ;; *) refuse "SEARCH=$SEARCH: give svm, nn or ddp" ;; esac
    [[ $SEARCH == ddp || $NODES != *" "* ]] || refuse "NODES=$NODES: several numbers are for SEARCH=ddp"
    [[ $1 != submit || $NODES != *" "* ]] || refuse "NODES=$NODES: submit takes one number; run trains them all"
    local value
    for value in $NODES "$MAIN_NODES" $([[ $GPU == none ]] || echo "$GPUS_PER_NODE"); do
        [[ $value =~ ^[1-9][0-9]*$ ]] || refuse "NODES, GPUS_PER_NODE and MAIN_NODES are whole numbers from 1, not $value"
    done
    RESULTS_BUCKET=${RESULTS_BUCKET#gs://}
    [[ $RESULTS_BUCKET != */* ]] || refuse "RESULTS_BUCKET=$RESULTS_BUCKET: give the name of a bucket alone"
    [[ -z $NODE_CONFIG || -r $NODE_CONFIG ]] || refuse "NODE_CONFIG=$NODE_CONFIG cannot be read"
}

check() {
    local tool service enabled
    for tool in gcloud kubectl gke-gcloud-auth-plugin; do
        ((dry)) || command -v $tool >/dev/null ||
            refuse "$tool is missing: gcloud components install kubectl gke-gcloud-auth-plugin"
    done
    enabled=$(asked "${GCLOUD[@]}" services list --enabled --format 'value(config.name)') ||
        refuse "project $PROJECT cannot be looked at: gcloud auth login, and set PROJECT"
    for service in container.googleapis.com compute.googleapis.com; do
        ((dry)) || [[ $'\n'$enabled$'\n' == *$'\n'$service$'\n'* ]] ||
            refuse "$service is not enabled: gcloud --project $PROJECT services enable $service"
    done
    measure
    image_exists
    [[ -z $RESULTS_BUCKET ]] || asked "${GCLOUD[@]}" storage buckets describe "gs://$RESULTS_BUCKET" --format 'value(name)' \
        >/dev/null || refuse "there is no bucket $RESULTS_BUCKET, or you may not look at it: see k8s/README.md, GKE"
    network_exists
    quotas
    budget
}

network_exists() {
    local mtu
    [[ $NETWORK ]] || return 0
    mtu=$(asked "${GCLOUD[@]}" compute networks describe "$NETWORK" --format 'value(mtu)') ||
        refuse "there is no network $NETWORK: gcloud --project $PROJECT compute networks create $NETWORK --mtu $MTU"
    ((dry)) || [[ $mtu == "$MTU" ]] || say "gke.sh: network $NETWORK has MTU $mtu, not $MTU: it is used as it is"
}

image_exists() {
    case $IMAGE in
        *-docker.pkg.dev/*)
            asked "${GCLOUD[@]}" artifacts docker images describe "$IMAGE" --format 'value(image_summary.digest)' >/dev/null ||
                refuse "there is no image $IMAGE, or you may not read it: push it first (k8s/README.md)"
            ;;
        *) say "gke.sh: whether $IMAGE exists is seen on the first node: it is in no Artifact Registry" ;;
    esac
}

quotas() { # refuse what the quotas do not allow, but of several sizes only the first; where one is not listed, say so
    local n=$((${PARTS%% *} * GPUS_PER_NODE)) name listed
    [[ $GPU != none ]] || {
        say "gke.sh: quotas of CPUs are not looked at: Google refuses nodes that are beyond them"
        return
    }
    name=${GPU#nvidia-}
    name=${name#tesla-}
    name=NVIDIA_$(tr 'a-z-' 'A-Z_' <<<"$name")_GPUS
    listed=$(
        asked "${GCLOUD[@]}" compute project-info describe --flatten quotas \
            --format 'csv[no-heading](quotas.metric,quotas.limit,quotas.usage)' &&
            asked "${GCLOUD[@]}" compute regions describe "${ZONE%-*}" --flatten quotas \
                --format 'csv[no-heading](quotas.metric,quotas.limit,quotas.usage)'
    ) || refuse "the quotas of $PROJECT cannot be read"
    if ((SPOT)) && [[ $(free_of PREEMPTIBLE_$name "$listed") =~ ^[1-9] ]]; then
        within PREEMPTIBLE_$name $n "$listed"
    else # spot nodes take the ordinary quota where there is none of their own
        within "$name" $n "$listed"
        within GPUS_ALL_REGIONS $n "$listed"
    fi
}

free_of() { # METRIC LISTED: limit less usage
    awk -F, -v metric="$1" '$1 == metric {print $2 - $3}' <<<"$2"
}

within() { # METRIC N LISTED
    local free
    free=$(free_of "$1" "$3")
    if ((dry)); then
        return
    elif [[ -z $free ]]; then
        say "gke.sh: quota $1 is not listed for ${ZONE%-*}: look at it in the console (IAM & Admin, Quotas)"
    elif ((${free%.*} < $2)); then
        refuse "quota $1 leaves ${free%.*} of the $2 GPUs wanted: ask for more in the console (IAM & Admin, Quotas)"
    elif ((${free%.*} < MOST_NODES * GPUS_PER_NODE)); then
        say "gke.sh: quota $1 leaves ${free%.*} GPUs: Google will refuse the sizes of NODES=$NODES that need more"
    fi
}

command_is_taken() { # the program itself parses its command, on the node without GPU; it gets no further than that
    local program last expected said
    if [[ $SEARCH == ddp ]]; then
        program="mnist_nn.ddp $(ddp_options)" last="--network search"
        [[ " $OPTIONS" != *" --from"* ]] || last="--network kubeflow"
        expected="$last "
    else
        program="$(search_command) --data /data --results /tmp/none $OPTIONS" last="--expect-nodes 9999"
        expected="$last, but there is"
    fi
    # Only the last option is wrong, so that the program says that of it alone where it takes all others.
    # shellcheck disable=SC2086  # they are words
    said=$(asked "${KUBECTL[@]}" exec files -- python -m $program $last 2>&1) || true
    ((dry)) || [[ $said == *"$expected"* ]] || {
        say "$said"
        say "gke.sh: the program does not take this: python -m $program"
        return 2
    }
}
