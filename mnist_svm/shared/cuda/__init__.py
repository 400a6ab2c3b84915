"""The shared-kernel solver on a GPU: many paths, of machines, folds and gammas, in one launch.

K - 1 of a gamma lies once in the memory of the device, as many gammas at a time as it has room for; a thread block
walks each path (``path.cu``), and decision values are matrix products. Answers are those of the solver for the CPU
within the tolerance.

    gpu = Gpu()                                              # compiles path.cu; needs cupy, which comes with cuML
    loaded = Loaded(gpu, prepare(x, y))
    for gamma, points in zip(gammas, paths(loaded, gammas, penalties, folds, "ovo")):
        points                                               # [fold][C], as mnist_svm.shared.path returns them

The host side works on any array module and anything that can run the kernel, see :class:`Device`.
"""

from mnist_svm.shared.cuda.device import Device, Gpu
from mnist_svm.shared.cuda.grid import fit, paths
from mnist_svm.shared.cuda.plan import Loaded
from mnist_svm.shared.cuda.solver import CudaSolver

__all__ = ["CudaSolver", "Device", "Gpu", "Loaded", "fit", "paths"]
