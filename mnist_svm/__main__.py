"""`python -m mnist_svm`: the grid search of a support vector machine."""

from mnist_svm.experiment import SvmGrid
from mpitune.cli import run
from mpitune.folders import set_cache_variables

if __name__ == "__main__":
    set_cache_variables()
    run(SvmGrid)
