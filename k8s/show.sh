#!/usr/bin/env bash
# What you run, changed for where you run it, in your image, as one text for kubectl:
#
#   IMAGE=REGISTRY/search:gpu k8s/show.sh svm gke kueue | kubectl apply -f -
#
# The first word is a folder of k8s/overlays, the others are folders of k8s/components, in the order of their application.
# PATCHES, if set, is the text of a list of patches that come last, as in a kustomization.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

refuse() {
    echo "show.sh: $*" >&2
    echo "overlays: $(cd "$here/overlays" && echo *)" >&2
    echo "components: $(cd "$here/components" && echo *)" >&2
    exit 2
}

(($#)) || refuse "give an overlay, and components"
[[ ${IMAGE:-} =~ ^[^\ #]+$ ]] || refuse "IMAGE=${IMAGE:-}: give the image that k8s/Containerfile makes, REGISTRY/search:gpu"
[[ -d $here/overlays/$1 ]] || refuse "there is no overlay $1"
for component in "${@:2}"; do
    [[ -d $here/components/$component ]] || refuse "there is no component $component"
done
made=$(mktemp -d "$here/overlays/.show.XXXXXX")
trap 'rm -r "$made"' EXIT
{
    printf 'apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../%s]\ncomponents:\n' "$1"
    printf -- '- ../../components/%s\n' "${@:2}"
    [[ -z ${PATCHES:-} ]] || printf 'patches:\n%s\n' "$PATCHES"
} | sed '/components\/$/d' >"$made/kustomization.yaml"
kubectl kustomize "$made" | sed "s#image: search\$#image: $IMAGE#"
