"""Trial keys, which name random streams too. A training has the same seed whether its weights are returned or not.

b2 is the draw of bootstrap sample 2; b2/t7 that of its parameter set 7; b2/t7/f0 fold 0 of that; b2/refit the network
of the ensemble; b2/refit/weights the same one, its weights returned.
"""

from __future__ import annotations

from mpitune.trial import Trial

WEIGHT = "weight:"  # begins the name of an array that is a weight of the network
LOSSES = "losses"  # name of the array with the training loss of each epoch


def sample_of(trial: Trial) -> int:
    """The number of the trial's bootstrap sample."""
    return int(trial.params["bootstrap"])


def refit_key(sample: int, with_weights: bool = False) -> str:
    """Key of the network of the ensemble."""
    return f"b{sample}/refit" + "/weights" * with_weights


def stream_of(trial: Trial) -> str:
    """The key that `mpitune.trial.seed_of` is given."""
    return trial.key.removesuffix("/weights")
