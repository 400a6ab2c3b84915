/* path.cu as a library of the host: see emulator.h. */

#include "emulator.h"

#include "path.cu"

static struct {
    const float *kernels;
    const long long *matrix, *stride, *first;
    const int *blocks;
    const signed char *sign;
    const double *penalties;
    long long n_penalties;
    double tolerance;
    long long limit;
    unsigned char *workspace;
    double *betas, *rhos;
    long long *iterations;
    unsigned char *converged;
} given;

static void walk(void) {
    walk_paths(given.kernels, given.matrix, given.stride, given.first, given.blocks, given.sign, given.penalties,
               given.n_penalties, given.tolerance, given.limit, given.workspace, given.betas, given.rhos,
               given.iterations, given.converged);
}

void launch(unsigned blocks, unsigned threads, size_t shared, const float *kernels, const long long *matrix,
            const long long *stride, const long long *first, const int *columns, const signed char *sign,
            const double *penalties, long long n_penalties, double tolerance, long long limit,
            unsigned char *workspace, double *betas, double *rhos, long long *iterations, unsigned char *converged) {
    given = (__typeof__(given)){kernels, matrix, stride, first, columns, sign, penalties, n_penalties, tolerance,
                                limit, workspace, betas, rhos, iterations, converged};
    run_grid(blocks, threads, shared, walk);
}
