"""Trial keys and seeds. A training has the same seed whatever its epoch limit and whether its weights are returned.

b2/t7/f0 is fold 0 of parameter set 7 of bootstrap sample 2; b2/t7/f0/e3 the first 3 epochs of the same training;
b2/refit the network of the ensemble; b2/refit/weights the same one, its weights returned.
"""

from __future__ import annotations

from common.trial import Trial

WEIGHT = "weight:"  # begins the name of an array that is a weight of the network
EPOCH_LIMIT = "epoch_limit"  # parameter of a trial that ends sooner than the study's --epochs


def fold_key(bootstrap: int, tuning: int, fold: int) -> str:
    """Key of one fold of a parameter set, trained for all epochs."""
    return f"b{bootstrap}/t{tuning}/f{fold}"


def refit_key(bootstrap: int, with_weights: bool = False) -> str:
    """Key of the network of the ensemble."""
    return f"b{bootstrap}/refit/weights" if with_weights else f"b{bootstrap}/refit"


def stream_of(trial: Trial) -> str:
    """The key that `common.trial.seed_of` is given."""
    params = trial.params
    if "fold" not in params:
        return refit_key(int(params["bootstrap"]))
    return fold_key(int(params["bootstrap"]), int(params["tuning"]), int(params["fold"]))
