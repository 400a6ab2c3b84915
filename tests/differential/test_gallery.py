"""scikit-learn's own examples that use a search print the same with and without `python -m mpitune --sklearn`.

They are taken from its source distribution, which pip fetches into results/gallery, once for each version.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
import sklearn

from tests.helpers import ROOT

pytestmark = pytest.mark.slow

EXAMPLES = (
    "callbacks/plot_scoring_monitor",
    "compose/plot_compare_reduction",
    "compose/plot_digits_pipe",
    "compose/plot_feature_union",
    "covariance/plot_covariance_estimation",
    "ensemble/plot_gradient_boosting_quantile",
    "gaussian_process/plot_compare_gpr_krr",
    "miscellaneous/plot_kernel_ridge_regression",
    "miscellaneous/plot_pipeline_display",
    "mixture/plot_gmm_selection",
    "model_selection/plot_grid_search_digits",
    "model_selection/plot_grid_search_refit_callable",
    "model_selection/plot_grid_search_stats",
    "model_selection/plot_multi_metric_evaluation",
    "model_selection/plot_nested_cross_validation_iris",
    "model_selection/plot_successive_halving_heatmap",
    "model_selection/plot_successive_halving_iterations",
    "neighbors/plot_caching_nearest_neighbors",
    "neighbors/plot_digits_kde_sampling",
    "preprocessing/plot_discretization_classification",
    "release_highlights/plot_release_highlights_1_3_0",
    "release_highlights/plot_release_highlights_1_8_0",
    "release_highlights/plot_release_highlights_1_9_0",
    "svm/plot_rbf_parameters",
)
NETWORK, ONLY_NAMED = "it downloads a data set", "it names a search in its text and makes none"
LEFT_OUT = {
    "applications/plot_cyclical_feature_engineering": NETWORK,
    "applications/plot_face_recognition": NETWORK,
    "cluster/plot_feature_agglomeration_vs_univariate_selection": "a memory of joblib logs its times",
    "compose/plot_column_transformer_mixed_types": NETWORK,
    "decomposition/plot_pca_vs_fa_model_selection": "its search is one of a covariance, in minutes of other work",
    "ensemble/plot_forest_hist_grad_boosting_comparison": NETWORK,
    "model_selection/plot_cost_sensitive_learning": NETWORK,
    "model_selection/plot_grid_search_text_feature_extraction": NETWORK,
    "model_selection/plot_randomized_search": "its SGDClassifier has no seed",
    "multiclass/plot_multiclass_overview": NETWORK,
    "neural_networks/plot_rbm_logistic_classification": ONLY_NAMED,
    "release_highlights/plot_release_highlights_0_24_0": NETWORK,
    "release_highlights/plot_release_highlights_1_4_0": NETWORK,
    "release_highlights/plot_release_highlights_1_6_0": NETWORK,
    "svm/plot_svm_kernels": ONLY_NAMED,
}
# Of some examples not all is compared: text that a pattern finds, for the reason that stands beside it.
OPEN = {
    "callbacks/plot_scoring_monitor": (r"(?m)^.*(━|\d:\d\d|0:0…).*\n?", "bars of progress show how long a fit took"),
    "compose/plot_feature_union": (r"\[CV 3/5; 3/18\].*", "two samples lie on a boundary: 24.5 - 5 * 4.9"),
    "ensemble/plot_gradient_boosting_quantile": (r"lies between .*", "its bootstrap has no seed"),
    "model_selection/plot_grid_search_digits": (r"(?s)The selected final model.*", "it chooses the fastest"),
    "model_selection/plot_nested_cross_validation_iris": (r"(?<=0\.00)\d+", "1 of 3,600 labels within tol of SVC"),
}
FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4 on
SEARCH = re.compile(r"\b(?:Grid|Randomized|HalvingGrid|HalvingRandom)SearchCV\b")

# pip asks a package for its name before it keeps the file, and scikit-learn's own answer takes a compiler and minutes.
BACKEND = """
import pathlib

def get_requires_for_build_wheel(settings=None):
    return []

def prepare_metadata_for_build_wheel(folder, settings=None):
    place = pathlib.Path(folder, "scikit_learn-{version}.dist-info")
    place.mkdir()
    place.joinpath("METADATA").write_text("Metadata-Version: 2.1\\nName: scikit-learn\\nVersion: {version}\\n")
    return place.name
"""


@functools.cache
def gallery() -> Path:
    """The folder of examples of the installed version. Skips where it cannot be had."""
    kept = ROOT / "results" / "gallery" / sklearn.__version__
    if kept.exists():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=kept.parent))
    try:
        (folder / "mesonpy.py").write_text(BACKEND.format(version=sklearn.__version__))
        wanted = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", f"scikit-learn=={sklearn.__version__}"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *wanted]
        environ = {**os.environ, "PYTHONPATH": str(folder)}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600)
        if done.returncode:
            pytest.skip(f"no source of scikit-learn {sklearn.__version__}: {done.stderr.strip().splitlines()[-1:]}")
        with tarfile.open(next(folder.glob("scikit*.tar.gz"))) as archive:
            found = [one for one in archive.getmembers() if one.isfile() and one.name.split("/")[1] == "examples"]
            archive.extractall(folder, found, **FILTER)
        (examples,) = folder.glob("*/examples")
        if not kept.exists():  # another process may have been faster
            examples.rename(kept)
        return kept
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def printed(words: list[str], folder: Path) -> tuple[int, str]:
    """Exit status and output of a Python program; its working folder is empty.

    Times are masked. Lines that tell of a fit stand in the order of results, so they are sorted at the end. This
    package prints none when a fit begins.
    """
    folder.mkdir()
    environ = {**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environ, capture_output=True, text=True)
    text = re.sub(r"\d+(\.\d+)?(?=\s*(s|sec|seconds|ms)\b)", "TIME", done.stdout)
    text = re.sub(r"(?im)time\b.*$", lambda rest: re.sub(r"\d+\.\d+", "TIME", rest[0]), text)
    lines = re.sub(r" at 0x[0-9a-fA-F]+", "", text).splitlines()
    fits = [line for line in lines if line.startswith("[CV")]
    return done.returncode, "\n".join(
        [line for line in lines if line not in fits] + sorted(line for line in fits if " START " not in line)
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_the_same(name: str, tmp_path: Path) -> None:
    script = gallery() / f"{name}.py"
    if not script.exists():
        pytest.skip(f"scikit-learn {sklearn.__version__} has no such example")
    status, right = printed([str(script)], tmp_path / "theirs")
    if status:
        pytest.skip(f"it ends with status {status} by scikit-learn alone")
    status, ours = printed(["-m", "mpitune", "-q", "--sklearn", str(script)], tmp_path / "ours")
    pattern, _ = OPEN.get(name, ("$^", ""))
    assert (status, re.sub(pattern, "", ours)) == (0, re.sub(pattern, "", right))


def test_every_example_with_a_search_is_run_or_left_out_for_a_reason() -> None:
    found = {
        str(path.relative_to(gallery()).with_suffix(""))
        for path in gallery().rglob("*.py")
        if SEARCH.search(path.read_text())
    }
    if sklearn.__version__.startswith("1.9."):
        assert found == {*EXAMPLES, *LEFT_OUT}
