"""`python -m mnist_nn`: bagging of networks."""

from mnist_nn.experiment import Bagging
from mpitune.cli import run
from mpitune.folders import set_cache_variables

if __name__ == "__main__":
    set_cache_variables()
    run(Bagging)
