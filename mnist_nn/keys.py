"""Trial keys and seeds. A training has the same seed whether its weights are returned or not.

b2/t7/f0 is fold 0 of parameter set 7 of bootstrap sample 2; b2/refit the network of the ensemble; b2/refit/weights the
same one, its weights returned.
"""

from __future__ import annotations

from mpitune.trial import Trial

WEIGHT = "weight:"  # begins the name of an array that is a weight of the network
LOSSES = "losses"  # name of the array with the training loss of each epoch


def sample_of(trial: Trial) -> int:
    """The number of the trial's bootstrap sample."""
    return int(trial.params["bootstrap"])


def sample_name(sample: int) -> str:
    """Begins the keys of a bootstrap sample's trials; its random streams have names that begin so, too."""
    return f"b{sample}"


def set_key(sample: int, tuning: int) -> str:
    """Begins the keys of a parameter set's folds; what it is drawn from has this name."""
    return f"{sample_name(sample)}/t{tuning}"


def fold_key(sample: int, tuning: int, fold: int) -> str:
    """Key of one fold of a parameter set."""
    return f"{set_key(sample, tuning)}/f{fold}"


def refit_key(sample: int, with_weights: bool = False) -> str:
    """Key of the network of the ensemble."""
    return f"{sample_name(sample)}/refit" + "/weights" * with_weights


def stream_of(trial: Trial) -> str:
    """The key that `mpitune.trial.seed_of` is given."""
    if trial.segment.fold is None:
        return refit_key(sample_of(trial))
    return fold_key(sample_of(trial), int(trial.params["tuning"]), trial.segment.fold)
