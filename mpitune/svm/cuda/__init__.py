"""The shared-kernel solver on a GPU: many paths, of problems, folds and gammas, in one launch.

K - 1 of a gamma lies once in the memory of the device, as many gammas at a time as it has room for; a thread block
walks each path (``path.cu``), and decision values are matrix products. Answers are those of the solver for the CPU
within the tolerance.

    gpu = Gpu()                                              # compiles path.cu; needs cupy, which comes with cuML
    loaded = Loaded(gpu, prepare(x, y))
    for gamma, points in zip(gammas, solve_gammas(loaded, gammas, penalties, folds, "ovo")):
        points                                               # [fold][C], as mpitune.svm.solve_gamma returns them

The host side works on any array module and anything that can run the kernel, see `ComputeDevice`.
"""

from mpitune.svm.cuda.device import ComputeDevice, Gpu
from mpitune.svm.cuda.grid import fit, solve_gammas
from mpitune.svm.cuda.plan import Loaded

__all__ = ["ComputeDevice", "Gpu", "Loaded", "fit", "solve_gammas"]
