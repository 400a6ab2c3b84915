"""What imports this has all that solves a grid, its compiled code as well: a server does so once for all workers."""

from mpitune.svm import candidates, libsvm

candidates.warm_up()
libsvm.is_faithful()
