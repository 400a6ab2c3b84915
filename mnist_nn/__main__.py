"""`python -m mnist_nn`: bagging of networks."""

from mnist_nn.experiment import Bagging
from mpitune._jit.folders import set_cache_variables
from mpitune.cli import run

if __name__ == "__main__":
    set_cache_variables()
    run(Bagging)
