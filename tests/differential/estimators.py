"""Random estimators and grids, as text. None is random without a seed: it would have no answer to compare with."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.differential.data import REGRESSION, Data

SEEDS = "0 1 7 | np.random.RandomState(3)"
# Values of each parameter, with those after | seldom.
TREES = dict(max_depth="1 2 3 None", max_features="1 0.5 'sqrt' None", min_samples_leaf="1 3", random_state=SEEDS)
FOREST = dict(
    TREES, n_estimators="1 2 3 5 8 | 0", bootstrap="True False", oob_score="True False", max_samples="None 0.5",
    warm_start="False | True", ccp_alpha="0.0 0.02",
)  # fmt: skip
BOOST = dict(
    n_estimators="1 2 4 7 12 | 0", learning_rate="0.1 0.5 1.0 | -1.0", subsample="1.0 0.6", max_depth="1 2 3",
    n_iter_no_change="None None 1 2", validation_fraction="0.1 0.3", tol="1e-4 0.05", random_state=SEEDS,
    warm_start="False | True",
)  # fmt: skip
HIST = dict(
    max_iter="1 2 4 8 15", learning_rate="0.1 0.4 1.0", max_leaf_nodes="2 4 None", min_samples_leaf="1 5 20",
    early_stopping="False True 'auto'", n_iter_no_change="1 2 5", validation_fraction="0.1 0.3 None", tol="1e-7 0.01",
    random_state=SEEDS, l2_regularization="0.0 1.0", max_features="1.0 0.5", warm_start="False | True",
)  # fmt: skip
LGBM = dict(
    n_estimators="1 2 4 8 15 | 0", learning_rate="0.1 0.5", min_split_gain="0.0 0.5 2.0",
    colsample_bytree="1.0 0.4 0.1",
    min_child_samples="1 5 20", num_leaves="2 4 31", random_state="0 1 7", subsample="1.0 0.6", subsample_freq="0 1 2",
    boosting_type="'gbdt' 'gbdt' 'dart' 'rf'", reg_lambda="0.0 1.0", extra_trees="False True", max_depth="-1 2",
)  # fmt: skip
XGB = dict(
    n_estimators="1 2 4 8 15 | 0", learning_rate="0.1 0.5", max_depth="1 2 4", subsample="1.0 0.6",
    reg_lambda="0.0 1.0",
    colsample_bytree="1.0 0.5", booster="'gbtree' 'gbtree' 'dart' 'gblinear'", random_state="0 1 7", gamma="0.0 1.0",
    min_child_weight="1 5", num_parallel_tree="1 2", base_score="None 0.3", tree_method="'hist' 'exact' 'approx'",
)  # fmt: skip
NEIGHBOURS = dict(
    n_neighbors="1 2 3 5 8 15 | 100 300 0 -1", weights="'uniform' 'distance'", p="1 2 3", leaf_size="1 30",
    metric="'minkowski' 'euclidean' 'manhattan' 'cosine' 'chebyshev' | 'precomputed' 'nan_euclidean'",
    algorithm="'auto' 'brute' 'kd_tree' 'ball_tree'",
)  # fmt: skip
RIDGE = dict(
    alpha="0.0 1e-3 0.1 1.0 10.0 1e4 | -1.0", fit_intercept="True False", positive="False | True",
    solver="'auto' 'auto' 'svd' 'cholesky' 'lsqr' 'sparse_cg' | 'sag' 'lbfgs'", random_state="0", tol="1e-4 1e-8",
)  # fmt: skip
LINEAR = dict(
    C="0.01 0.1 1.0 10.0 | -1.0 0.0", fit_intercept="True False", class_weight="None 'balanced'", random_state="0"
)
SVMS = dict(
    C="1e-4 0.01 0.1 1.0 10.0 100.0 | -1.0 0.0 np.inf", gamma="'scale' 'auto' 0.001 0.01 0.1 1.0 | -1.0",
    kernel="'rbf' 'rbf' 'rbf' 'linear' 'poly' 'sigmoid'", degree="2 3", coef0="0.0 1.0",
)  # fmt: skip
SVC = dict(
    SVMS, class_weight="None 'balanced'", probability="False True", random_state=SEEDS, shrinking="True False",
    decision_function_shape="'ovr' 'ovo'", break_ties="False | True", tol="1e-3 | 1e-6", max_iter="-1 | 3",
)  # fmt: skip
BAYES = dict(var_smoothing="1e-9 1e-3 1.0")
LASSO = dict(alpha="0.001 0.1 1.0 10.0 | -1.0", fit_intercept="True False", positive="False True", random_state="0",
             selection="'cyclic' | 'random'", warm_start="False | True", max_iter="1000 | 2")  # fmt: skip

CLASSIFIERS = {
    "KNeighborsClassifier()": NEIGHBOURS,
    "RandomForestClassifier()": dict(FOREST, class_weight="None 'balanced' 'balanced_subsample'"),
    "ExtraTreesClassifier()": dict(FOREST, class_weight="None 'balanced'"),
    "BaggingClassifier()": dict(
        n_estimators="1 2 3 5 | 0", max_samples="1.0 0.5", max_features="1.0 0.5", bootstrap="True False",
        oob_score="False True", random_state=SEEDS, warm_start="False | True",
        estimator="None GaussianNB() KNeighborsClassifier(3) DecisionTreeClassifier(max_depth=2)",
    ),
    "AdaBoostClassifier()": dict(
        n_estimators="1 2 4 8 | 0", learning_rate="0.1 1.0 2.0", random_state=SEEDS,
        estimator="None GaussianNB() DecisionTreeClassifier(max_depth=3)",
    ),
    "GradientBoostingClassifier()": dict(BOOST, loss="'log_loss' | 'exponential'", max_features="None 1 0.5"),
    "HistGradientBoostingClassifier()": dict(HIST, scoring="'loss' 'accuracy' 'roc_auc' None",
        class_weight="None 'balanced'"),
    "LGBMClassifier(n_jobs=1, verbose=-1)": dict(LGBM, class_weight="None 'balanced'"),
    "XGBClassifier(n_jobs=1)": XGB,
    "RidgeClassifier()": dict(RIDGE, class_weight="None 'balanced'"),
    "LinearDiscriminantAnalysis()": dict(
        solver="'svd' 'lsqr' 'eigen'", shrinkage="None 'auto' 0.0 0.3 1.0 | 2.0", n_components="None 1 2 | 5 0",
        tol="1e-4 1e-2", store_covariance="False True", priors="None | [0.5,0.5]",
    ),
    "LogisticRegression()": dict(LINEAR, solver="'lbfgs' 'liblinear' 'newton-cg' | 'saga'", max_iter="100 | 3",
        warm_start="False | True"),
    "SVC()": SVC,
    "SVC(cache_size=50)": SVC,
    "NuSVC()": dict(nu="0.05 0.1 0.3 | 0.9", gamma="'scale' 0.1", kernel="'rbf' 'linear'", random_state="0"),
    "LinearSVC()": dict(LINEAR, loss="'hinge' 'squared_hinge'", dual="'auto' True", max_iter="1000 | 5"),
    "DecisionTreeClassifier()": dict(TREES, criterion="'gini' 'entropy'", class_weight="None 'balanced'",
        ccp_alpha="0.0 0.05"),
    "GaussianNB()": BAYES,
    "BernoulliNB()": dict(alpha="0.0 0.1 1.0", binarize="0.0 0.5"),
    "NearestCentroid()": dict(metric="'euclidean' 'manhattan'", shrink_threshold="None 0.1 0.5"),
    "QuadraticDiscriminantAnalysis()": dict(reg_param="0.1 0.5 1.0"),
    "DummyClassifier()": dict(strategy="'most_frequent' 'prior' 'stratified'", random_state="0"),
}  # fmt: skip
REGRESSORS = {
    "KNeighborsRegressor()": NEIGHBOURS,
    "RandomForestRegressor()": FOREST,
    "ExtraTreesRegressor()": FOREST,
    "BaggingRegressor()": dict(
        n_estimators="1 2 3 5 | 0", max_samples="1.0 0.5", max_features="1.0 0.5", oob_score="False True",
        random_state=SEEDS, estimator="None Ridge() KNeighborsRegressor(3)",
    ),
    "AdaBoostRegressor()": dict(
        n_estimators="1 2 4 8 | 0", learning_rate="0.1 1.0 2.0",
        random_state=SEEDS, loss="'linear' 'square' 'exponential'",
        estimator="None Ridge() DecisionTreeRegressor(max_depth=1)",
    ),
    "GradientBoostingRegressor()": dict(BOOST, loss="'squared_error' 'huber' 'quantile' 'absolute_error'"),
    "HistGradientBoostingRegressor()": dict(HIST, scoring="'loss' 'r2' None",
        loss="'squared_error' 'absolute_error' | 'poisson'"),
    "LGBMRegressor(n_jobs=1, verbose=-1)": dict(LGBM, objective="None | 'l1' 'quantile'"),
    "XGBRegressor(n_jobs=1)": XGB,
    "Ridge()": RIDGE,
    "Ridge(random_state=0)": dict(RIDGE, solver="'auto' 'svd'"),
    "Lasso()": LASSO,
    "ElasticNet()": dict(LASSO, l1_ratio="0.1 0.5 1.0 | 0.0"),
    "SVR()": dict(SVMS, epsilon="0.01 0.1"),
    "DecisionTreeRegressor()": dict(TREES, criterion="'squared_error' 'absolute_error'"),
    "LinearRegression()": dict(fit_intercept="True False", positive="False True"),
}  # fmt: skip
ALWAYS = ("random_state", "n_estimators")  # given or searched: the default is slow, or gives no two equal results
NO_WEIGHTS = ("KNeighbors", "LinearDiscriminant", "NearestCentroid", "QuadraticDiscriminant")
TRANSFORMERS = {
    "StandardScaler()": dict(with_mean="True False", with_std="True False", copy="True | False"),
    "MinMaxScaler()": dict(feature_range="(0,1) (-1,1)"),
    "RobustScaler()": dict(quantile_range="(25.0,75.0) (10.0,90.0)"),
    "MaxAbsScaler()": {},
    "Normalizer()": dict(norm="'l1' 'l2' 'max'"),
    "PCA()": dict(
        n_components="None 1 2 3 0.5 0.9 | 0 100 'mle'",
        svd_solver="'auto' 'full' 'covariance_eigh' | 'arpack' 'randomized'",
        whiten="False True", random_state=SEEDS,
    ),
    "PCA(random_state=0)": dict(n_components="1 2 3 4", whiten="False True"),
    "SelectKBest()": dict(k="1 2 3 'all' 0 | 100 -1", score_func="f_classif mutual | chi2"),
    "SelectPercentile()": dict(percentile="10 30 50 100 | 0 200", score_func="f_classif mutual"),
    "SelectFpr()": dict(alpha="0.01 0.05 0.5 1.0 | 0.0 2.0", score_func="f_classif"),
    "SelectFdr()": dict(alpha="0.05 0.5 1.0", score_func="f_classif"),
    "SelectFwe()": dict(alpha="0.05 0.5 1.0", score_func="f_classif"),
    "VarianceThreshold()": dict(threshold="0.0 0.5 0.9 1.1 | 50.0 -1.0"),
    "SelectFromModel(TREE)": dict(threshold="None 'mean' 'median' 0.1 -np.inf | 5.0", max_features="None 1 2 3 | 100",
        norm_order="1 2"),
    "SelectFromModel(LINEAR_MODEL)": dict(threshold="None 'mean' '1.25*median' 0.1", max_features="None 1 2 | -1",
        prefit="False | True"),
    "PolynomialFeatures(2)": dict(interaction_only="False True", include_bias="False True"),
    "FunctionTransformer()": dict(func="np.abs np.cbrt | np.log"),
    "QuantileTransformer(n_quantiles=10)": dict(output_distribution="'uniform' 'normal'", random_state="0"),
    "KBinsDiscretizer(quantile_method='averaged_inverted_cdf')": dict(n_bins="2 3 5",
        encode="'ordinal' 'onehot' 'onehot-dense'", random_state="0"),
    "TruncatedSVD()": dict(n_components="1 2", random_state=SEEDS, algorithm="'randomized' | 'arpack'"),
    "Nystroem()": dict(n_components="3 5 10", gamma="0.1 1.0", random_state=SEEDS),
    "SimpleImputer()": dict(strategy="'mean' 'median' 'most_frequent'", add_indicator="False | True"),
}  # fmt: skip


@dataclass
class Model:
    """An estimator and the parameters that are searched, as text.

    Attributes:
        values: of each searched parameter.
        weights: the keyword of `fit` that takes sample weights; "" where there is none.
    """

    text: str
    values: dict[str, list[str]] = field(default_factory=dict)
    weights: str = ""

    def below(self, name: str) -> dict[str, list[str]]:
        """The searched parameters as those of an outer estimator, which knows this one by a name."""
        return {f"{name}__{key}": values for key, values in self.values.items()}


def _values(draw: random.Random, text: str, most: int) -> list[str]:
    usual, _, seldom = (part.split() for part in text.partition("|"))
    found = draw.sample(usual, min(len(usual), draw.randint(2, most))) if len(usual) > 1 else list(usual)
    if seldom and draw.random() < 0.08:
        found.insert(draw.randrange(len(found) + 1), draw.choice(seldom))
    return found


def _drawn(draw: random.Random, table: dict[str, dict[str, str]], regression: bool, n_searched: int) -> Model:
    """One of a table, with some parameters set and some searched."""
    text = draw.choice(sorted(table))
    parameters = dict(table[text])
    names = [name for name in parameters if name != "random_state" or draw.random() < 0.15]
    # What families share is first in the table, and is searched most often.
    searched = [name for place, name in enumerate(names) if draw.random() < (0.6 if place < 2 else 0.15)][:n_searched]
    given, values = [], {}
    for name, choices in parameters.items():
        if f"{name}=" in text:
            continue
        if name in searched:
            values[name] = _values(draw, choices, 5 if name == names[0] else 3)
        elif name in ALWAYS or (name == "max_iter" and text.startswith("Hist")) or draw.random() < 0.25:
            given.append(f"{name}={draw.choice(_values(draw, choices, 2))}")
    if given:
        text = text[:-1] + ("" if text.endswith("(") or text.endswith("()") else ", ") + ", ".join(given) + ")"
    model = Model(text, values)
    kind = "Regressor" if regression else "Classifier"
    for name, meaning in {
        "TREE": f"DecisionTree{kind}(max_depth=3, random_state=0)",
        "LINEAR_MODEL": "Ridge()" if regression else "LogisticRegression(C=0.5)",
    }.items():
        model.text = model.text.replace(f"({name}", f"({meaning}")
    functions = {"f_classif": "f_regression" if regression else "f_classif"}
    functions["mutual"] = "r_regression" if regression else "chi2"
    for name, meaning in functions.items():
        model.text = model.text.replace(f"={name}", f"={meaning}")
        model.values = {
            key: [meaning if value == name else value for value in all_] for key, all_ in model.values.items()
        }
    if regression and "Select" in text and "FromModel" not in text and "score_func" not in model.text + str(values):
        model.text = model.text[:-1] + (", " if not model.text.endswith("()") else "") + "score_func=f_regression)"
    return model


def _final(draw: random.Random, regression: bool, n_searched: int = 3) -> Model:
    """An estimator that predicts."""
    table = REGRESSORS if regression else CLASSIFIERS
    if not regression and draw.random() < 0.12:  # the one that has a solver of its own here
        table = {text: parameters for text, parameters in CLASSIFIERS.items() if text.startswith("SVC")}
    model = _drawn(draw, table, regression, n_searched)
    if not model.text.startswith(NO_WEIGHTS):
        model.weights = "sample_weight"
    return model


def _columns(draw: random.Random, found: Data) -> str:
    """A ColumnTransformer, with the categories encoded where there are some."""
    if not found.frame:
        half = max(1, found.features // 2)
        parts = [
            f"('a', {draw.choice(['StandardScaler()', 'MinMaxScaler()', 'PCA(1, random_state=0)'])}, slice(0, {half}))"
        ]
        parts += [f"('b', {draw.choice(['RobustScaler()', repr('passthrough'), repr('drop')])}, slice({half}, None))"]
        return f"ColumnTransformer([{', '.join(parts)}])"
    names = [f"c{i}" for i in range(found.features)]
    encoder = draw.choice(
        ["OneHotEncoder(handle_unknown='ignore')", "OneHotEncoder(sparse_output=False)", "OrdinalEncoder()"]
    )
    numbers = draw.choice(["StandardScaler()", "'passthrough'"])
    return f"ColumnTransformer([('numbers', {numbers}, {names}), ('kinds', {encoder}, ['kind'])])"


def _pipeline(draw: random.Random, found: Data, final: Model) -> Model:
    """Some transformers before an estimator; steps are searched themselves at times."""
    regression = found.task == REGRESSION
    steps: list[tuple[str, Model]] = []
    if found.frame or draw.random() < 0.1:
        steps.append(("columns", Model(_columns(draw, found))))
    for number in range(draw.choice([0, 1, 1, 2]) if steps else draw.choice([1, 1, 1, 2, 3])):
        steps.append((f"t{number}", _drawn(draw, TRANSFORMERS, regression, draw.choice([0, 1, 1, 2]))))
    if len(steps) > 1 and draw.random() < 0.12:  # a Pipeline in a Pipeline
        inner = ", ".join(f"({name!r}, {step.text})" for name, step in steps)
        values = {key: each for name, step in steps for key, each in step.below(name).items()}
        steps = [("inner", Model(f"Pipeline([{inner}])", values))]
    if steps and draw.random() < 0.05:
        side = _drawn(draw, TRANSFORMERS, regression, 1)
        steps[-1] = ("union", Model(f"FeatureUnion([('l', {steps[-1][1].text}), ('r', {side.text})])", side.below("r")))
    values: dict[str, list[str]] = {}
    for name, step in [*steps, ("m", final)]:
        values.update(step.below(name))
    if steps and draw.random() < 0.12:  # a step is searched
        others = [_drawn(draw, TRANSFORMERS, regression, 0).text for _ in range(2)]
        values = {key: each for key, each in values.items() if not key.startswith(steps[-1][0] + "__")}
        values[steps[-1][0]] = [steps[-1][1].text, draw.choice([others[1], "'passthrough'", "None"]), others[0]]
    elif draw.random() < 0.06:
        values = {key: each for key, each in values.items() if not key.startswith("m__")}
        values["m"] = [final.text, _final(draw, regression, 0).text]
    if steps and draw.random() < 0.05:
        steps.insert(draw.randrange(len(steps) + 1), ("nothing", Model("'passthrough'")))
    text = ", ".join(f"({name!r}, {step.text})" for name, step in [*steps, ("m", final)])
    return Model(f"Pipeline([{text}])", values, "m__sample_weight" if final.weights else "")


def _around(draw: random.Random, inner: Model, found: Data) -> Model:
    """An estimator that has others inside."""
    regression = found.task == REGRESSION
    seed = draw.randrange(5)
    if regression:
        kind = draw.choice(
            [
                "TransformedTargetRegressor",
                "VotingRegressor",
                "BaggingRegressor",
                "MultiOutputRegressor",
                "GridSearchCV",
            ]
        )
    else:
        kind = draw.choice(
            ["VotingClassifier", "BaggingClassifier", "OneVsRestClassifier", "CalibratedClassifierCV", "GridSearchCV"]
        )
    if kind == "TransformedTargetRegressor":
        return Model(f"{kind}({inner.text}, func=np.cbrt, inverse_func=cube)", inner.below("regressor"))
    if kind.startswith("Voting"):
        other = _final(draw, regression, 1)
        more = draw.choice(["", ", voting='soft'"]) if not regression else ""
        values = {**inner.below("a"), **other.below("b")}
        if draw.random() < 0.3:
            values["weights"] = ["None", "[1, 2]"]
        return Model(f"{kind}([('a', {inner.text}), ('b', {other.text})]{more})", values)
    if kind.startswith("Bagging"):
        values = {**inner.below("estimator"), "n_estimators": ["1", "2", "4"]}
        return Model(f"{kind}({inner.text}, random_state={seed})", values)
    if kind == "CalibratedClassifierCV":
        return Model(f"{kind}({inner.text}, cv=2)", inner.below("estimator"))
    if kind == "GridSearchCV":
        name, choices = next(iter(inner.values.items()), ("", []))
        grid = f"{{{name!r}: [{', '.join(choices)}]}}" if name else "{}"
        rest = {f"estimator__{key}": each for key, each in inner.values.items() if key != name}
        return Model(f"{kind}({inner.text}, {grid}, cv=2)", rest)
    return Model(f"{kind}({inner.text})", inner.below("estimator"))


def model(draw: random.Random, found: Data) -> Model:
    """Any estimator for these samples."""
    regression = found.task == REGRESSION
    made = _final(draw, regression)
    if made.text.startswith("LogisticRegression") and draw.random() < 0.15:
        made.text += ".set_callbacks(monitor)"
    if found.frame or draw.random() < 0.55:
        made = _pipeline(draw, found, made)
    if draw.random() < 0.1:
        made = _around(draw, made, found)
    return made
