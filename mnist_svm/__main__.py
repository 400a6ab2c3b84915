"""`python -m mnist_svm`: the grid search of a support vector machine."""

from common.cli import run
from mnist_svm.experiment import SvmGrid

if __name__ == "__main__":
    run(SvmGrid)
