"""`python -m mnist_svm`: the grid search of a support vector machine."""

from mnist_svm.experiment import SvmGrid
from mpitune.cli import run

if __name__ == "__main__":
    run(SvmGrid)
