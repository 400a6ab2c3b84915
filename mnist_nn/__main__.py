"""`python -m mnist_nn`: bagging of networks."""

from mnist_nn.experiment import Bagging
from mpitune.cli import run

if __name__ == "__main__":
    run(Bagging)
