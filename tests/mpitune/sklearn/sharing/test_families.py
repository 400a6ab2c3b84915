"""Each family beside single fits, on samples that hypothesis draws: many of them equally far, some of them equal."""

from typing import Any

import numpy as np
import pytest
import sklearn
import sklearn.model_selection as theirs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix, issparse
from sklearn import ensemble
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import FitFailedWarning
from sklearn.feature_selection import SelectFpr, SelectFromModel, SelectKBest, SelectPercentile
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, Ridge, RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import Pipeline

from mpitune.sklearn import GridSearchCV
from mpitune.sklearn.sharing import family_of, kernels
from mpitune.sklearn.sharing.family import SplitPart
from mpitune.sklearn.sharing.kernels import NoiseLevels, solved
from tests.mpitune.sklearn.sharing.beside import ENSEMBLES, compared, number_of

drawn = settings(
    max_examples=max(1, settings().max_examples // 100),  # each is whole searches: one here, three in make check
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FEW = st.integers(0, 2**31)


def samples(seed: int, whole: bool, n: int = 60, p: int = 4, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Samples and labels. whole: small whole numbers, so that many are equally far, and some equal."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 4, (n, p)).astype(float) if whole else rng.normal(size=(n, p))
    y = rng.permutation(np.arange(n) % classes)
    return X, y


@drawn
@given(seed=FEW, whole=st.booleans(), p=st.sampled_from([3, 20]), algorithm=st.sampled_from(["auto", "brute"]))
@pytest.mark.parametrize(
    ("metric", "scoring"),
    [
        ("euclidean", "accuracy"), ("manhattan", "neg_log_loss"), ("cosine", "neg_log_loss"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in
          (("euclidean", "neg_log_loss"), ("manhattan", "accuracy"), ("cosine", "accuracy"))),
    ],
)  # fmt: skip
def test_neighbours(caplog: Any, scoring: str, metric: str, seed: int, whole: bool, p: int, algorithm: str) -> None:
    """k from one to more than there are samples; also at and beyond half of them, where scikit-learn takes no tree."""
    X, y = samples(seed, whole, p=p)
    X[:, 0] += 1.0  # no sample is zero: it would have no cosine
    grid = {"n_neighbors": [1, 3, 8, 19, 20, 40], "weights": ["uniform", "distance"]}
    kind = KNeighborsClassifier(metric=metric, algorithm="auto" if metric == "cosine" else algorithm)
    ours = compared(caplog, kind, grid, X, y, scoring=scoring, return_train_score=True)
    assert ours.plan_.n_fits == 3 and ours.cv_results_["shared_with"][0] == tuple(range(1, 12))


@drawn
@given(seed=FEW, whole=st.booleans(), p=st.sampled_from([3, 20]))
def test_neighbours_of_numbers(caplog: Any, seed: int, whole: bool, p: int) -> None:
    X, y = samples(seed, whole, p=p, classes=9)
    grid = {"n_neighbors": [1, 2, 3, 5, 8, 19], "weights": ["uniform", "distance", np.sqrt]}
    compared(caplog, KNeighborsRegressor(), grid, X, y.astype(float), atol=1e-12)


@drawn
@given(seed=FEW, metric=st.sampled_from(["euclidean", "manhattan", "chebyshev"]), share=st.sampled_from([1, 10, 100]))
@pytest.mark.parametrize("order", ["C", "F"])
def test_neighbours_equally_far(caplog: Any, order: Any, seed: int, metric: str, share: int) -> None:
    """Without a tree, so many rows that a few of them are asked again; shares of whole numbers are rounded."""
    X, y = samples(seed, whole=True, n=300, p=3)
    grid = {"n_neighbors": [1, 2, 7, 16, 40, 120, 200], "weights": ["uniform", "distance", None]}
    kind = KNeighborsClassifier(metric=metric, algorithm="brute")
    compared(caplog, kind, grid, np.asarray(X / share, order=order), y)


@pytest.mark.parametrize(("metric", "seed"), [("cosine", 14), ("cosine", 22), ("correlation", 14)])
def test_neighbours_whose_distances_are_rounded(caplog: Any, metric: str, seed: int) -> None:
    """Samples on one line are equally far, but for the rounding of a matrix product; or their distance is NaN."""
    X, y = samples(seed, whole=True, p=3)
    X[:, 0] += 1.0
    grid = {"n_neighbors": [1, 3, 8], "weights": ["uniform", "distance"]}
    compared(caplog, KNeighborsClassifier(metric=metric), grid, X, y, scoring="neg_log_loss", return_train_score=True)


@pytest.mark.parametrize(
    ("estimator", "grid"),
    [
        (KNeighborsClassifier(), {"n_neighbors": [True, 3, 8]}),
        (ensemble.AdaBoostRegressor(random_state=0), {"n_estimators": [True, 2, 3]}),
    ],
)  # fmt: skip
def test_true_is_no_number(estimator: Any, grid: dict[str, Any]) -> None:
    """scikit-learn's checks take it as one, its code does not: that candidate fails, the others do not."""
    X, y = samples(0, whole=True)
    tables = []
    for kind, own in ((GridSearchCV, {"workers": 0}), (theirs.GridSearchCV, {})):
        with pytest.warns(UserWarning):
            tables.append(kind(estimator, grid, cv=3, **own).fit(X, y).cv_results_["mean_test_score"])
    np.testing.assert_array_equal(*tables)
    assert np.isfinite(tables[0]).tolist() == [False, True, True]


@settings(drawn, max_examples=1)
@given(seed=FEW, weighted=st.booleans())
@pytest.mark.parametrize("estimator", ENSEMBLES, ids=lambda value: str(value)[:30])
def test_ensembles(caplog: Any, estimator: Any, seed: int, weighted: bool) -> None:
    """Early stopping ends some of them before the largest number; 0 members is an error of that candidate alone."""
    X, y = samples(seed, whole=False)
    weights = {"sample_weight": np.random.default_rng(seed).uniform(0.5, 2.0, len(y))} if weighted else {}
    scoring = None if "Regressor" in type(estimator).__name__ else "neg_log_loss"
    with pytest.warns(Warning):
        ours = compared(
            caplog, estimator, {number_of(estimator): [3, 1, 8, 0]}, X, y, fit_params=weights, scoring=scoring,
            return_train_score=True,
        )  # fmt: skip
    assert ours.plan_.n_fits == 3


@settings(drawn, max_examples=1)
@given(seed=FEW, weighted=st.booleans())
@pytest.mark.parametrize(
    ("library", "kind", "how", "sampled"),
    [
        ("lightgbm", "LGBMClassifier", {"verbose": -1, "min_child_samples": 3, "subsample_freq": 1}, {}),
        ("lightgbm", "LGBMRegressor", {"verbose": -1, "min_child_samples": 3, "subsample_freq": 1}, {}),
        ("xgboost", "XGBClassifier", {"max_depth": 3}, {"colsample_bylevel": 0.6}),
        ("xgboost", "XGBRegressor", {"max_depth": 3}, {"colsample_bylevel": 0.6}),
    ],
)
@pytest.mark.parametrize("scoring", [None, "neg_log_loss"])
def test_rounds_of_boosting(
    caplog: Any, scoring: str | None, library: str, kind: str, how: Any, sampled: Any, seed: int, weighted: bool
) -> None:
    """All samples with scikit-learn's score, some of them with that of probabilities or numbers."""
    boosting = pytest.importorskip(library, reason=f"{library} is not installed")
    X, y = samples(seed, whole=False)
    weights = {"sample_weight": np.random.default_rng(seed).uniform(0.5, 2.0, len(y))} if weighted else {}
    more = {**sampled, "subsample": 0.6} if scoring else {}
    scoring = "neg_mean_squared_error" if scoring and kind.endswith("Regressor") else scoring
    model = getattr(boosting, kind)(n_jobs=1, **how, **more)
    arguments = {"scoring": scoring, "fit_params": weights, "return_train_score": True}
    assert compared(caplog, model, {"n_estimators": [3, 1, 10]}, X, y, **arguments).plan_.n_fits == 3


@pytest.mark.filterwarnings("ignore:One or more of the")
@drawn
@given(seed=FEW, two=st.booleans())
@pytest.mark.parametrize("solver", ["svd", "lsqr", "eigen"])
def test_discriminants(caplog: Any, solver: str, seed: int, two: bool) -> None:
    """Alone and before neighbours. The size 3 is more than there are, so it fails alone."""
    X, y = samples(seed, whole=False, n=80, p=5, classes=2 if two else 3)
    grid: dict[str, Any] = {"n_components": [None, 1, 2, 3]}
    if solver != "svd":
        grid["shrinkage"] = [None, 0.3]
    kind = LinearDiscriminantAnalysis(solver=solver)
    with pytest.warns(FitFailedWarning):
        ours = compared(caplog, kind, grid, X, y, scoring="neg_log_loss", return_train_score=True)
    assert ours.plan_.n_fits == 3 * len(grid.get("shrinkage", [None]))
    if solver != "lsqr":
        model = Pipeline([("lda", kind), ("knn", KNeighborsClassifier())])
        grid = {**{f"lda__{name}": values for name, values in grid.items()}, "knn__n_neighbors": [1, 3]}
        with pytest.warns(FitFailedWarning):
            compared(caplog, model, grid, X, y)


@drawn
@given(seed=FEW, normalize=st.booleans(), several=st.booleans())
@pytest.mark.parametrize("fixed", [True, False])
def test_gaussian_processes(caplog: Any, fixed: bool, seed: int, normalize: bool, several: bool) -> None:
    """Enough noise levels for a decomposition; one with which it is factorised; one that fails."""
    X, y = samples(seed, whole=False, n=170)
    targets = np.stack([y, X[:, 0] ** 2], axis=1) if several else y
    kernel = ConstantKernel(2.0, "fixed") * RBF(1.5, "fixed") if fixed else RBF(1.5)
    how = {} if fixed else {"optimizer": None}
    model = GaussianProcessRegressor(kernel, normalize_y=normalize, **how)
    grid = {"alpha": [1e-10, *np.logspace(-3, 3, 12)]}
    ours = compared(caplog, model, grid, X, targets, atol=1e-7, return_train_score=True)
    assert ours.plan_.n_fits == 3
    few = compared(caplog, model, {"alpha": [1e-10, 0.1]}, X, targets)  # bitwise equal
    assert few.plan_.n_fits == 3


def test_a_gaussian_process_of_float32_samples_is_solved_in_float32(caplog: Any) -> None:
    X, y = samples(1, whole=False, n=170)
    grid = {"alpha": np.logspace(-3, 3, 12).tolist()}
    compared(caplog, GaussianProcessRegressor(DotProduct(1.0, "fixed")), grid, X.astype(np.float32), y)  # bitwise equal


def test_a_known_gaussian_process_also_says_how_sure_it_is() -> None:
    X, y = samples(3, whole=False, n=170)
    alphas = np.logspace(-3, 3, 12)
    part = SplitPart(X[:100], y[:100], None, X[100:], y[100:])
    model = GaussianProcessRegressor(RBF(1.5, "fixed"))
    for one, alpha in zip(NoiseLevels().fit(model, [{"alpha": a} for a in alphas], part), alphas, strict=True):
        single = GaussianProcessRegressor(RBF(1.5, "fixed"), alpha=alpha).fit(X[:100], y[:100])
        for ours, alone in zip(one.predict(part.X_test, return_std=True), single.predict(X[100:], True), strict=True):
            np.testing.assert_allclose(ours, alone, atol=1e-9)
        np.testing.assert_allclose(one.predict(X[100:].copy()), one.predict(part.X_test), atol=1e-12)
        np.testing.assert_array_equal(one.L_, single.L_)
        assert one.log_marginal_likelihood_value_ == pytest.approx(single.log_marginal_likelihood_value_, rel=1e-9)


@drawn
@given(seed=FEW, wide=st.booleans(), weighted=st.booleans(), intercept=st.booleans())
@pytest.mark.parametrize("solver", ["auto", "svd"])
def test_ridge(caplog: Any, solver: str, seed: int, wide: bool, weighted: bool, intercept: bool) -> None:
    """More features than samples, too."""
    X, y = samples(seed, whole=False, p=70 if wide else 5)
    weights = {"sample_weight": np.random.default_rng(seed).uniform(0.5, 2.0, len(y))} if weighted else {}
    grid = {"alpha": [0.01, 1.0, 100.0]}
    for model in (Ridge, RidgeClassifier):
        estimator = model(solver=solver, fit_intercept=intercept)
        atol = 1e-12 if solver == "svd" else 0.0
        compared(caplog, estimator, grid, X, y, atol, fit_params=weights, return_train_score=True)


def test_coefficients_of_several_targets_have_the_order_of_single_ones() -> None:
    """In memory: rounding in products with them depends on it."""
    X, y = samples(0, whole=False)
    targets = np.stack([y, X[:, 0] ** 2], axis=1)
    family: Any = family_of(Ridge, "exact")
    for one in family.fit(Ridge(), [{"alpha": 1.0}, {"alpha": 2.0}], SplitPart(X, targets, None, X, targets)):
        assert one.coef_.strides == Ridge(one.alpha).fit(X, targets).coef_.strides


@drawn
@given(seed=FEW, weighted=st.booleans(), several=st.booleans())
@pytest.mark.parametrize("kernel", ["rbf", "polynomial", pytest.param("linear", marks=pytest.mark.slow)])
def test_kernel_ridge(caplog: Any, kernel: str, seed: int, weighted: bool, several: bool) -> None:
    """Enough alphas for a decomposition; one with which scikit-learn itself solves."""
    X, y = samples(seed, whole=False, n=170)
    targets = np.stack([y, X[:, 0] ** 2], axis=1) if several else y
    weights = {"sample_weight": np.random.default_rng(seed).uniform(0.5, 2.0, len(y))} if weighted else {}
    grid = {"alpha": [1e-13, *np.logspace(-3, 3, 11)], "gamma": [0.1, 1.0]}
    compared(caplog, KernelRidge(kernel=kernel), grid, X, targets, atol=1e-8, fit_params=weights)


@pytest.mark.parametrize(
    ("kernel", "work"), [("rbf", "euclidean_distances"), ("polynomial", "safe_sparse_dot"), ("poly", "safe_sparse_dot")]
)
def test_gammas_share_distances_or_products(caplog: Any, monkeypatch: Any, kernel: str, work: str) -> None:
    """Computed once for the training and once for the validation samples of each fold; few alphas: bitwise equal."""
    X, y = samples(4, whole=False, n=70)
    calls = []
    function = getattr(kernels, work)
    monkeypatch.setattr(kernels, work, lambda *args, **how: (calls.append(1), function(*args, **how))[1])
    grid = {"alpha": [0.1, 1.0], "gamma": [0.1, 1.0, 3.0]}
    for model in (KernelRidge(kernel=kernel), KernelRidge(kernel=kernel, degree=2.5, coef0=60.0)):
        calls.clear()
        compared(caplog, model, grid, X, y.astype(float))
        assert len(calls) == 3 * 2


def test_only_equations_that_are_far_from_singular_are_solved_by_decomposition() -> None:
    """-1e6 makes the matrix indefinite."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(96, 96))
    A, right = A @ A.T, rng.normal(size=(96, 2))
    A -= np.eye(96) * np.linalg.eigvalsh(A)[0]
    alphas = [-1e6, 1e-13, *np.logspace(-1, 2, 9)]
    found = solved(A, right, alphas)
    assert list(found) == alphas[2:]
    for alpha, solution in found.items():
        residual = A @ solution + alpha * solution - right
        assert np.abs(residual).max() < 1e-12 * np.linalg.norm(A, 2) * np.abs(solution).max()
    assert not solved(A, right, alphas[1:]) and not solved(A.astype(np.float32), right, alphas)


@drawn
@given(seed=FEW, tall=st.booleans())
@pytest.mark.parametrize("solver", ["full", pytest.param("covariance_eigh", marks=pytest.mark.slow), "auto"])
def test_components_before_neighbours(caplog: Any, solver: str, seed: int, tall: bool) -> None:
    """Shared on both levels; the size 99 fails alone."""
    X, y = samples(seed, whole=False, n=90 if tall else 60, p=5 if tall else 12)
    model = Pipeline([("pca", PCA(svd_solver=solver, whiten=seed % 2 == 0)), ("knn", KNeighborsClassifier())])
    grid = {"pca__n_components": [1, 3, 5, None], "knn__n_neighbors": [1, 4], "knn__weights": ["uniform", "distance"]}
    ours = compared(caplog, model, grid, X, y, return_train_score=True)
    assert ours.plan_.n_fits == 3 * (1 + 4)
    assert all(len(others) == 3 for others in ours.cv_results_["shared_with"])


def test_components_as_data_frames() -> None:
    testing = pytest.importorskip("pandas.testing", reason="pandas is not installed")
    X, y = samples(1, whole=False, p=12)
    family: Any = family_of(PCA, "exact")
    for model, wanted in ((PCA(), "pandas"), (PCA().set_output(transform="pandas"), "default")):
        with sklearn.config_context(transform_output=wanted):
            made = family.fit_transform(model, [{"n_components": n} for n in (1, 5)], SplitPart(X, y, None, X, y))
            for one, samples_of in made:
                testing.assert_frame_equal(samples_of(), clone(one).fit_transform(X), check_exact=True)


class MyLasso(Lasso):
    """A user's own."""


FILTERS: dict[str, tuple[Any, list[dict[str, Any]], list[int]]] = {  # and the places of those that are fitted alone
    "best": (SelectKBest(), [{"k": 3}, {"k": 1}, {"k": "all"}, {}, {"k": 99}, {"k": -1}], [4, 5]),
    "percent": (SelectPercentile(), [{"percentile": 100}, {"percentile": 50}, {}, {"percentile": 101}], [3]),
    "test": (SelectFpr(), [{"alpha": 0.9}, {"alpha": 0.99}, {}], []),
    "logistic": (
        SelectFromModel(LogisticRegression()),
        [
            {"threshold": "mean"}, {"threshold": "1.2*median"}, {"threshold": -np.inf, "max_features": 2}, {},
            {"max_features": 3}, {"max_features": lambda X: X.shape[1] // 2}, {"norm_order": 2, "threshold": 0.3},
            {"max_features": -1}, {"norm_order": 0}, {"threshold": 1e9},
        ],
        [7, 8],
    ),
    "lasso": (SelectFromModel(Lasso(0.01)), [{"threshold": 0.05}, {}, {"max_features": 1}], []),
    "trees": (SelectFromModel(ensemble.ExtraTreesClassifier(5, random_state=0)), [{"threshold": "median"}, {}], []),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:No features were selected", "ignore:Features", "ignore:invalid value")
@settings(drawn, max_examples=4)
@given(seed=FEW, sparse=st.booleans())
@pytest.mark.parametrize("name", FILTERS)
def test_filters_of_features(name: str, seed: int, sparse: bool) -> None:
    """The same features as single fits keep."""
    selector, candidates, alone = FILTERS[name]
    X, y = samples(seed, whole=False, p=12)
    X[:, 1], X[:, 2] = 0.1, X[:, 2] > 0
    if sparse:
        X = csr_matrix(X)
    family = family_of(type(selector), "exact")
    assert family is not None and family.why_not(selector) is None
    made = family.fit_transform(selector, candidates, SplitPart(X, y, None, X[:5], y[:5]))
    assert [place for place, one in enumerate(made) if one is None] == alone
    for one, candidate in zip(made, candidates, strict=True):
        if one is not None:
            single = clone(selector).set_params(**candidate).fit(X, y)
            assert one[0].get_support().tolist() == single.get_support().tolist()
            ours, theirs = one[1](), single.transform(X)
            assert type(ours) is type(theirs)
            np.testing.assert_array_equal(*(part.toarray() if issparse(part) else part for part in (ours, theirs)))


@pytest.mark.parametrize(
    ("estimator", "prefit", "reason"),
    [
        (ensemble.RandomForestClassifier(), False, "fits of RandomForestClassifier without a seed may differ"),
        (Lasso(selection="random"), False, "fits of Lasso without a seed may differ"),
        (MyLasso(), False, "fits with MyLasso, which is not scikit-learn's, may differ"),
        (
            ensemble.BaggingClassifier(ensemble.RandomForestClassifier(), random_state=0),
            False,
            "fits of RandomForestClassifier",
        ),
        (Lasso(), True, "its estimator is fitted already"),
    ],
    ids=["no seed", "random order", "own class", "within", "fitted"],
)
def test_filters_whose_model_may_differ_from_fit_to_fit(estimator: Any, prefit: bool, reason: str) -> None:
    family = family_of(SelectFromModel, "exact")
    assert family is not None
    assert str(family.why_not(SelectFromModel(estimator, prefit=prefit))).startswith(reason)


@drawn
@given(seed=FEW)
@pytest.mark.parametrize(
    ("estimator", "grid"),
    [
        (Lasso(tol=1e-8, max_iter=100_000), {"alpha": [0.001, 0.1, 0.01]}),
        (ElasticNet(tol=1e-8, max_iter=100_000), {"alpha": [0.001, 0.1, 0.01], "l1_ratio": [0.2, 0.8]}),
        (LogisticRegression(tol=1e-8, max_iter=10_000), {"C": [1.0, 0.01, 0.1]}),
    ],
    ids=["lasso", "elastic net", "logistic"],
)
def test_within_the_tolerance(caplog: Any, estimator: Any, grid: Any, seed: int) -> None:
    X, y = samples(seed, whole=False)
    scoring = "neg_log_loss" if "C" in grid else None
    ours = compared(caplog, estimator, grid, X, y, atol=1e-5, share="tolerance", scoring=scoring)
    assert ours.plan_.n_saved == 3 * 2 * len(grid.get("l1_ratio", [1])) and "warm starts within tol" in str(ours.plan_)
    assert compared(caplog, estimator, grid, X, y, scoring=scoring).plan_.n_saved == 0  # exact by default
