from common.cli import run
from mnist_svm.experiment import SvmGrid

if __name__ == "__main__":
    run(SvmGrid)
