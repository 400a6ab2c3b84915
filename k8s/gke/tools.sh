# shellcheck shell=bash disable=SC2034
# What all parts of gke.sh use: commands that are printed, bounded in time, and not run by --dry-run.

GCLOUD=(gcloud --quiet --project "$PROJECT")
# Named in every command, so that no other cluster is ever touched.
KUBECTL=(kubectl --context "gke_${PROJECT}_${ZONE}_${CLUSTER}" --request-timeout "${CALL_TIMEOUT}s")
NODES=$(printf '%s\n' $NODES | sort -n -u | paste -sd ' ')
PARTS=$NODES            # the sizes of the GPU pool, one after the other
MOST_NODES=${NODES##* } # the largest
dry=0
owed=0     # whether a failure from here on must delete the cluster
generated= # a folder to remove at the end

say() { printf '%s\n' "$*" >&2; }

refuse() {
    say "gke.sh: $*"
    exit 2
}

switches() { # NAME...: variables that say yes or no become 1 or 0
    local name
    for name; do
        case ${!name,,} in
            1 | y | yes | true | on) printf -v "$name" 1 ;;
            0 | n | no | false | off) printf -v "$name" 0 ;;
            *) refuse "$name=${!name}: give yes or no" ;;
        esac
    done
}

run() {
    printf '+ %s\n' "$*" >&2
    ((dry)) || "$@"
}

limited() { # SECONDS COMMAND...
    local seconds=$1
    shift
    run timeout --foreground --kill-after 30 "$seconds" "$@"
}

asked() { # COMMAND...: a question, which has CALL_TIMEOUT to be answered
    limited "$CALL_TIMEOUT" "$@"
}

until_true() { # SECONDS WHAT COMMAND...: wait until the command succeeds
    local seconds=$1 what=$2 end=$((SECONDS + $1))
    shift 2
    until "$@"; do
        if ((SECONDS >= end)); then
            say "gke.sh: $what: not within $seconds s"
            return 1
        fi
        sleep "$POLL"
    done
}

overlay() { # "FOLDER COMPONENTS..." PATCHES COMMAND...: run kubectl COMMAND on them with this cluster's image and patches
    local words patches=$2 components=""
    read -r -a words <<<"$1"
    ((${#words[@]} == 1)) || components=$(printf '../../components/%s, ' "${words[@]:1}")
    shift 2
    generated=$(mktemp -d "$HERE/overlays/.gke.$$.XXXXXX")
    cat >"$generated/kustomization.yaml" <<EOF
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../${words[0]}]
components: [${components%, }]
images:
  - {name: search, newName: "${IMAGE%:*}", newTag: "${IMAGE##*:}"}
patches:
$patches
EOF
    ((!dry)) || cat "$generated/kustomization.yaml" >&2
    local status=0
    asked "${KUBECTL[@]}" "$1" -k "$generated" "${@:2}" || status=$?
    rm -r "$generated"
    generated=
    return $status
}
