"""`python -m mnist_nn`: bagging of networks."""

from common.cli import run
from mnist_nn.experiment import Bagging

if __name__ == "__main__":
    run(Bagging)
