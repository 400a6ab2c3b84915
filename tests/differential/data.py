"""Random samples, labels, weights and splits, as lines of Python: a line that is not needed can be taken out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

BINARY, MULTICLASS, REGRESSION = "binary", "multiclass", "regression"


@dataclass(frozen=True)
class Data:
    """Lines that make `X`, `y` (n samples), `w` (weights) and `groups`, and what a model must know of them.

    Attributes:
        lines: of a script, in order. The first `needed` of them cannot be taken out.
        task: "binary", "multiclass" or "regression".
        frame: X is a DataFrame whose last column holds categories.
        features: number of columns of numbers.
    """

    lines: tuple[str, ...]
    task: str
    n: int
    features: int
    frame: bool


def picked(draw: random.Random, choices: Sequence[tuple[float, str]]) -> list[str]:
    """Those of the texts that are drawn, each with a probability of its own."""
    return [text for probability, text in choices if draw.random() < probability]


def data(draw: random.Random) -> Data:
    """Samples with what real tables have: duplicates, constants, other types, rare classes."""
    task = draw.choice([BINARY, BINARY, MULTICLASS, MULTICLASS, REGRESSION, REGRESSION])
    n = draw.choice([20, 24, 30, 30, 40, 40, 50, 60, 80, 120, 200])
    p = draw.choice([1, 2, 3, 4, 4, 5, 6, 8, 12, 30])
    lines = [
        f"n, p = {n}, {p}",
        f"rng = np.random.default_rng({draw.randrange(10**6)})",
        "X = rng.normal(size=(n, p))",
        {
            BINARY: "y = (X[:, 0] + 0.5 * rng.normal(size=n) > 0.2).astype(int)",
            MULTICLASS: "y = np.digitize(X[:, 0] + 0.5 * rng.normal(size=n), [-0.5, 0.4])",
            REGRESSION: "y = X @ rng.normal(size=p) + 0.3 * rng.normal(size=n)",
        }[task],
        "w = rng.integers(0, 3, n).astype(float)",
        "groups = rng.integers(0, 5, n)",
    ]
    lines += picked(
        draw,
        [
            (0.12, "X = X.round()"),
            (0.10, "X[n // 2 :], y[n // 2 :] = X[: n - n // 2], y[: n - n // 2]"),
            (0.05, "X[n // 2 :] = X[: n - n // 2]"),
            (0.08, "X[:, 0] = 1.0"),
            (0.06, "X[:, -1] = X[:, 0]"),
            (0.04, "X *= 1e-8"),
            (0.04, "X *= 1e6"),
            (0.06, "X[:, 0] *= 1e5"),
            (0.05, "X = np.abs(X)"),
            (0.03, "X[0, 0] = np.nan"),
        ],
    )
    if task == REGRESSION:
        lines += picked(
            draw, [(0.08, "y = y.round()"), (0.04, "y *= 1e6"), (0.03, "y[:] = 1.0"), (0.05, "y = np.c_[y, -X[:, 0]]")]
        )
    else:
        lines += picked(
            draw,
            [
                (0.06, "y[0] = y.max() + 1"),
                (0.05, "y[rng.random(n) < 0.7] = 0"),
                (0.03, "y = np.arange(n) % (y.max() + 1)"),
                (0.02, "y[:] = 1"),
            ],
        )
    frame = draw.random() < 0.12
    if frame:
        lines += [
            "X = pd.DataFrame(X, columns=[f'c{i}' for i in range(p)])",
            "X['kind'] = pd.Categorical(np.array(['red', 'green', 'blue'])[rng.integers(0, 3, n)])",
        ]
    elif draw.random() < 0.4:
        forms = [
            "X = X.astype(np.float32)", "X = X.astype(np.float32)", "X = (X * 10).clip(-99, 99).astype(np.int8)",
            "X = np.asfortranarray(X)", "X.flags.writeable = False", "X = X.tolist()", "X = X[:, ::-1]",
            "X = sparse.csr_matrix(X * (np.abs(X) > 0.5))", "X = sparse.csr_matrix(X * (np.abs(X) > 0.5))",
            "X = sparse.csr_array(X)", "X = sparse.csc_matrix(X)", "X = pd.DataFrame(X)",
        ]  # fmt: skip
        lines.append(draw.choice(forms))
    if task != REGRESSION and draw.random() < 0.4:
        forms = [
            "y = np.array(['no', 'yes', 'maybe', 'a', 'b'])[y]", "y = np.array([7, -1, 3, 5, 4])[y]",
            "y = y.astype(bool)",
            "y = y.astype(object)", "y = np.array(['u', 'v', 'c', 'a', 'b'], dtype=object)[y]", "y = y.astype(float)",
            "y = y.tolist()", "y = pd.Series(y, index=np.arange(n)[::-1])", "y = y.astype(np.uint8)", "y = y[:, None]",
        ]  # fmt: skip
        lines.append(draw.choice(forms))
    elif task == REGRESSION and draw.random() < 0.15:
        lines.append(
            draw.choice(
                ["y = y.astype(np.float32)", "y = y.tolist()", "y = pd.Series(list(y))", "y.flags.writeable = False"]
            )
        )
    return Data(tuple(lines), task, n, p, frame)


def splits(draw: random.Random, found: Data) -> str | None:
    """The text of an argument `cv`; None for the default."""
    k = draw.choice([2, 2, 3, 3, 4])
    seed = draw.randrange(100)
    left, out = f"np.arange(n)[np.arange(n) % {k} != i]", f"np.arange(i, n, {k})"
    whole = "[(np.arange(n), np.arange(n))]"
    kept = [
        None, f"{k}", f"KFold({k})", f"KFold({k})", f"KFold({k}, shuffle=True, random_state={seed})",
        f"KFold({k}, shuffle=True, random_state=np.random.RandomState({seed}))",
        f"ShuffleSplit({k}, test_size=0.3, random_state={seed})", f"GroupKFold({k})", "LeaveOneGroupOut()",
        f"RepeatedKFold(n_splits=2, n_repeats=2, random_state={seed})", f"TimeSeriesSplit({k})",
        f"PredefinedSplit(np.arange({found.n}) % {k})",
        f"[(rng.integers(0, n, n), {out}) for i in range({k})]",
        f"[(np.r_[np.arange(n), np.arange(n)[:: {k}]], {out}) for i in range({k})]",
        f"[({left}, np.arange(n)[n // 3 * (i % 2) :]) for i in range({k})]",
        f"[({left}, {out}) for i in range({k})] + {whole}",
        f"[(np.arange(n) % {k} != i, np.arange(n) % {k} == i) for i in range({k})]",
        f"[(rng.permutation(n)[n // {k} :], rng.permutation(n)[: n // {k}].tolist()) for i in range({k})]",
        f"(({left}, {out}) for i in range({k}))",
    ]  # fmt: skip
    if found.task != REGRESSION:
        kept += [
            f"StratifiedKFold({k})",
            f"StratifiedKFold({k}, shuffle=True, random_state={seed})",
            f"StratifiedShuffleSplit({k}, test_size=0.3, random_state={seed})",
            f"StratifiedGroupKFold({k})",
            f"[(np.flatnonzero(np.ravel(y) == np.ravel(y)[i]), np.arange(n)) for i in range(2)] + {whole}",
            f"[(np.r_[:n, np.repeat(np.flatnonzero(np.ravel(y) == np.ravel(y)[0]), 3)], {out}) for i in range({k})]",
        ]
    return draw.choice(kept)
