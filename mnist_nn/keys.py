"""Trial keys and seeds. A training has the same seed whatever its epoch limit and whether its weights are returned.

b2/t7/f0 is fold 0 of parameter set 7 of bootstrap sample 2; b2/t7/f0/e3 the first 3 epochs of the same training;
b2/refit the network of the ensemble; b2/refit/weights the same one, its weights returned; b2/refit-1se that of the
parameter set that `--select 1se` chooses. o0of5/b2/... are those of a search that does not see outer fold 0 of 5.
"""

from __future__ import annotations

from typing import NamedTuple

from common.images import outer_of, outer_params, outer_prefix
from mpitune.trial import Trial

WEIGHT = "weight:"  # begins the name of an array that is a weight of the network
LOSSES = "losses"  # name of the array with the training loss of each epoch
EPOCH_LIMIT = "epoch_limit"  # parameter of a trial that ends sooner than the study's --epochs


class Sample(NamedTuple):
    """A bootstrap sample: its number, and the outer fold that its search does not see (number, of how many)."""

    number: int
    outer: tuple[int, int] | None = None

    @classmethod
    def of(cls, trial: Trial) -> Sample:
        return cls(int(trial.params["bootstrap"]), outer_of(trial))

    @property
    def name(self) -> str:
        """Begins the keys of its trials; its random streams have names that begin so, too."""
        return f"{outer_prefix(self.outer)}b{self.number}"

    @property
    def params(self) -> dict[str, int]:
        """The parameters of its trials that say which sample it is."""
        return {"bootstrap": self.number, **outer_params(self.outer)}

    def fold_key(self, tuning: int, fold: int) -> str:
        """Key of one fold of a parameter set, trained for all epochs."""
        return f"{self.name}/t{tuning}/f{fold}"

    def refit_key(self, with_weights: bool = False, rule: str = "best") -> str:
        """Key of the network of the ensemble, whose parameter set was chosen by `rule`."""
        chosen = "refit" if rule == "best" else f"refit-{rule}"
        return f"{self.name}/{chosen}/weights" if with_weights else f"{self.name}/{chosen}"


def stream_of(trial: Trial) -> str:
    """The key that `mpitune.trial.seed_of` is given."""
    sample = Sample.of(trial)
    if "fold" not in trial.params:
        return sample.refit_key()
    return sample.fold_key(int(trial.params["tuning"]), int(trial.params["fold"]))
