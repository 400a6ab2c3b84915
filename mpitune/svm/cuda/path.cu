/* All C of many binary problems: one thread block walks the whole path of one problem, from the smallest C up.

   The problem, its notation, its lanes and the rules of the path are those of ../solver/smo.py and walk.py: signed
   multipliers beta = y alpha, gradient f = (K - 1) beta - y, pairs chosen by second order (WSS2), LIBSVM's stopping
   rule, warm start by an exact line search, cold after a bounded solution that does not fit, no iteration where no
   multiplier touched the bound. f and beta are double over one float32 matrix. Nothing is shrunk or gathered here,
   and every step moves one pair.

   The bits of a result depend neither on the size of a block nor on where f lies: of equal lanes the first is chosen,
   and sums are taken over PARTS fixed parts by a fixed tree.

   This file is CUDA C++ and, apart from the words defined next, C11: tests compile it for the host, where they
   define these words themselves. SCRATCH, STATE, LANES, TAU, FREE and GAP are defined by device.py for every compiler. */

#ifndef KERNEL
#define KERNEL extern "C" __global__
#define DEVICE static __device__ __forceinline__
#define BLOCK_MEMORY extern __shared__ double block_memory[]
#define WARP 32
#define UNROLL _Pragma("unroll")
#define SYNC() __syncthreads()
#define SHUFFLE(value, step) __shfl_xor_sync(0xffffffffu, value, step)
#define LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#endif

#define PARTS 128 /* of a sum */
#define MAX_WARPS 32 /* of a thread block */
#define BATCH 4 /* lanes that a thread asks for before it looks at the first: it waits for memory most of the time */
#define FAR 1.7976931348623157e308

enum { UP = 1, LOW = 2 }; /* the flags of a lane: beta may rise, beta may fall */

typedef struct {
    double least;  /* of the lanes whose beta may rise */
    double most;   /* of the lanes whose beta may fall */
    int where;     /* the first lane with `least` */
} Extremes;

typedef struct {
    double linear, quadratic, support, free;
} Sums;

typedef struct {
    Sums parts[PARTS];
    Extremes warps[2][MAX_WARPS];
    double delta;
} Scratch; /* the first SCRATCH bytes of a block's shared memory; the host defines that number */
typedef char scratch_must_fit[sizeof(Scratch) <= SCRATCH ? 1 : -1];

typedef struct {
    const float *matrix;     /* K - 1, its rows `stride` elements apart */
    const int *blocks;       /* lane t is row and column LANES * blocks[t / LANES] + t % LANES */
    const signed char *sign; /* +1, -1, or 0 for a lane of no sample */
    long long stride;
    int lanes;
    double *f;
    unsigned char *flags;
    Scratch *scratch;
} Problem;

DEVICE int column_of(const Problem *p, int t) {
    return LANES * p->blocks[(unsigned)t / LANES] + (int)((unsigned)t % LANES);
}

/* The b-th lane of a thread's batch; past the end its first again, for no thread looks at another's lanes here. */
DEVICE int lane_of(const Problem *p, int start, int b) {
    const int t = start + b * (int)blockDim.x;
    return t < p->lanes ? t : start;
}

DEVICE unsigned char flags_of(int sign, double beta, double bound) {
    if (sign > 0)
        return (unsigned char)((beta < bound ? UP : 0) | (beta > 0.0 ? LOW : 0));
    if (sign < 0)
        return (unsigned char)((beta < 0.0 ? UP : 0) | (beta > -bound ? LOW : 0));
    return 0;
}

DEVICE Extremes no_extremes(void) {
    Extremes none;
    none.least = FAR;
    none.most = -FAR;
    none.where = -1;
    return none;
}

DEVICE Extremes merged(Extremes a, Extremes b) {
    if (b.least < a.least || (b.least == a.least && b.where < a.where)) {
        a.least = b.least;
        a.where = b.where;
    }
    if (b.most > a.most)
        a.most = b.most;
    return a;
}

DEVICE Extremes of_warp(Extremes mine) {
    for (int step = WARP / 2; step > 0; step /= 2) {
        Extremes other;
        other.least = SHUFFLE(mine.least, step);
        other.most = SHUFFLE(mine.most, step);
        other.where = SHUFFLE(mine.where, step);
        mine = merged(mine, other);
    }
    return mine;
}

/* The extremes of all threads, known to each. Between two calls with one `buffer` there is another SYNC. */
DEVICE Extremes of_block(Extremes mine, Scratch *scratch, int buffer) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    mine = of_warp(mine);
    if (lane == 0)
        scratch->warps[buffer][warp] = mine;
    SYNC();
    return of_warp(lane < (int)blockDim.x / WARP ? scratch->warps[buffer][lane] : no_extremes());
}

/* parts[0] becomes the sum of all parts, known to each thread. */
DEVICE Sums of_parts(Sums *parts) {
    for (int step = PARTS / 2; step > 0; step /= 2) {
        SYNC();
        for (int part = threadIdx.x; part < step; part += blockDim.x) {
            parts[part].linear += parts[part + step].linear;
            parts[part].quadratic += parts[part + step].quadratic;
            parts[part].support += parts[part + step].support;
            parts[part].free += parts[part + step].free;
        }
    }
    SYNC();
    return parts[0];
}

DEVICE Sums sums_of(const Problem *p, const double *beta, double bound) {
    SYNC();
    for (int part = threadIdx.x; part < PARTS; part += blockDim.x) {
        Sums sums = {0.0, 0.0, 0.0, 0.0};
        for (int t = part; t < p->lanes; t += PARTS) {
            const double b = beta[t], alpha = fabs(b);
            if (p->sign[t] != 0 && b != 0.0) {
                sums.linear += alpha;
                sums.quadratic += b * (p->f[t] + p->sign[t]);
                sums.support += 1.0;
                sums.free += alpha < bound ? 1.0 : 0.0;
            }
        }
        p->scratch->parts[part] = sums;
    }
    return of_parts(p->scratch->parts);
}

DEVICE void start_cold(const Problem *p, double *beta, double bound) {
    for (int t = threadIdx.x; t < p->lanes; t += blockDim.x) {
        beta[t] = 0.0;
        p->f[t] = -p->sign[t];
        p->flags[t] = flags_of(p->sign[t], 0.0, bound);
    }
    SYNC();
}

/* Scale the solution `before` for bound `previous`; true if it is the solution for `bound` as it is. */
DEVICE int start_warm(const Problem *p, double *beta, const double *before, double bound, double previous,
                      int converged) {
    const Sums sums = sums_of(p, before, previous);
    const int same = converged && sums.support > 0.0 && sums.free == sums.support;
    const double ratio = bound / previous;
    double scale = ratio;
    if (sums.quadratic > 0.0)
        scale = fmax(1.0, fmin(sums.linear / sums.quadratic, ratio));
    if (same)
        scale = 1.0;
    Extremes mine = no_extremes();
    for (int t = threadIdx.x; t < p->lanes; t += blockDim.x) {
        const int sign = p->sign[t];
        double alpha = fabs(before[t]);
        alpha = alpha == previous && scale == ratio ? bound : fmin(alpha * scale, bound);
        beta[t] = alpha * sign;
        p->f[t] = scale * (p->f[t] + sign) - sign;
        p->flags[t] = flags_of(sign, beta[t], bound);
        if (p->flags[t] & UP)
            mine.least = fmin(mine.least, p->f[t]);
        if (p->flags[t] & LOW)
            mine.most = fmax(mine.most, p->f[t]);
    }
    mine = of_block(mine, p->scratch, 0);
    SYNC();
    if (!same && FREE * sums.free < sums.support && mine.most - mine.least > GAP)
        start_cold(p, beta, bound);
    return same;
}

/* Move f by delta (K_i - K_j). Returns the least f of the lanes that may rise, with its first, and the most of those
   that may fall. */
DEVICE Extremes step_and_first(const Problem *p, const float *row_i, const float *row_j, double delta) {
    Extremes mine = no_extremes();
    for (int start = threadIdx.x; start < p->lanes; start += BATCH * (int)blockDim.x) {
        float k_i[BATCH], k_j[BATCH];
        double f[BATCH];
        int flags[BATCH];
        UNROLL
        for (int b = 0; b < BATCH; ++b) {
            const int t = lane_of(p, start, b), column = column_of(p, t);
            k_i[b] = row_i[column];
            k_j[b] = row_j[column];
            f[b] = p->f[t];
            flags[b] = p->flags[t];
        }
        UNROLL
        for (int b = 0; b < BATCH; ++b) {
            const int t = start + b * (int)blockDim.x;
            const double value = fma(-delta, (double)k_j[b], fma(delta, (double)k_i[b], f[b]));
            if (t < p->lanes) {
                p->f[t] = value;
                if ((flags[b] & UP) && value < mine.least) {
                    mine.least = value;
                    mine.where = t;
                }
                if ((flags[b] & LOW) && value > mine.most)
                    mine.most = value;
            }
        }
    }
    return of_block(mine, p->scratch, 0);
}

/* The first lane of those that may fall that lowers the objective most together with i, or -1. */
DEVICE int second(const Problem *p, const float *row_i, double f_i) {
    Extremes mine = no_extremes();
    mine.least = 0.0;
    for (int start = threadIdx.x; start < p->lanes; start += BATCH * (int)blockDim.x) {
        float k_i[BATCH], gap[BATCH];
        UNROLL
        for (int b = 0; b < BATCH; ++b) {
            const int t = lane_of(p, start, b);
            k_i[b] = row_i[column_of(p, t)];
            gap[b] = (p->flags[t] & LOW) ? (float)(p->f[t] - f_i) : 0.0f;
        }
        UNROLL
        for (int b = 0; b < BATCH; ++b) {
            const int t = start + b * (int)blockDim.x;
            const double gain = gap[b] * gap[b] / fmaxf(-k_i[b], (float)TAU);
            if (t < p->lanes && gap[b] > 0.0f && -gain < mine.least) {
                mine.least = -gain;
                mine.where = t;
            }
        }
    }
    return of_block(mine, p->scratch, 1).where;
}

/* By one thread: the step of the pair (i, j), as far as the bounds allow. */
DEVICE void move_pair(const Problem *p, double *beta, double bound, int i, int j, float k_ij) {
    const double top_i = p->sign[i] > 0 ? bound : 0.0, bottom_j = p->sign[j] > 0 ? 0.0 : -bound;
    const double room_i = top_i - beta[i], room_j = beta[j] - bottom_j;
    double delta = (p->f[j] - p->f[i]) / fmax(-2.0 * k_ij, TAU);
    delta = fmin(delta, fmin(room_i, room_j));
    beta[i] = delta == room_i ? top_i : beta[i] + delta;
    beta[j] = delta == room_j ? bottom_j : beta[j] - delta;
    p->flags[i] = flags_of(p->sign[i], beta[i], bound);
    p->flags[j] = flags_of(p->sign[j], beta[j], bound);
    p->scratch->delta = delta;
}

/* One C from where f, beta and flags stand; true if converged, after `*done` iterations. */
DEVICE int solve(const Problem *p, double *beta, double bound, double tolerance, long long limit, long long *done) {
    const float *row_i = p->matrix, *row_j = p->matrix;
    double delta = 0.0;
    for (*done = 0;; ++*done) {
        const Extremes extremes = step_and_first(p, row_i, row_j, delta);
        if (!(extremes.most - extremes.least >= tolerance))
            return 1;
        if (*done == limit)
            return 0;
        const int i = extremes.where;
        row_i = p->matrix + column_of(p, i) * p->stride;
        const int j = second(p, row_i, extremes.least);
        if (j < 0) /* only with NaN in the matrix */
            return 0;
        row_j = p->matrix + column_of(p, j) * p->stride;
        if (threadIdx.x == 0)
            move_pair(p, beta, bound, i, j, row_i[column_of(p, j)]);
        SYNC();
        delta = p->scratch->delta;
    }
}

/* LIBSVM's rho: the mean of f over the free lanes, else the middle of what the bounded ones allow. */
DEVICE double intercept(const Problem *p) {
    Extremes mine = no_extremes();
    SYNC();
    for (int part = threadIdx.x; part < PARTS; part += blockDim.x) {
        Sums sums = {0.0, 0.0, 0.0, 0.0};
        for (int t = part; t < p->lanes; t += PARTS) {
            const int free = p->flags[t];
            if (free == (UP | LOW)) {
                sums.linear += p->f[t];
                sums.free += 1.0;
            } else if (free == UP) {
                mine.least = fmin(mine.least, p->f[t]);
            } else if (free == LOW) {
                mine.most = fmax(mine.most, p->f[t]);
            }
        }
        p->scratch->parts[part] = sums;
    }
    mine = of_block(mine, p->scratch, 0);
    const Sums sums = of_parts(p->scratch->parts);
    return sums.free > 0.0 ? sums.linear / sums.free : (mine.least + mine.most) / 2.0;
}

/* Block b walks path b.

   kernels: the matrices, path b's from element matrix[b] on, its rows stride[b] elements apart.
   first: (paths + 1,), where the lanes of each path begin in `blocks` (in LANES) and `sign`.
   penalties: (n_penalties,), ascending. workspace: STATE bytes for each lane of each path from STATE * first[b] on, for f and
   flags, or null if they fit a block's shared memory behind the scratch.
   betas: (n_penalties, lanes) for each path from n_penalties * first[b] on. rhos, iterations, converged: (paths,
   n_penalties). */
KERNEL void LAUNCH_BOUNDS(512, 2)
walk_paths(const float *kernels, const long long *matrix, const long long *stride, const long long *first,
           const int *blocks, const signed char *sign, const double *penalties, long long n_penalties,
           double tolerance, long long limit, unsigned char *workspace, double *betas, double *rhos,
           long long *iterations, unsigned char *converged) {
    BLOCK_MEMORY;
    const long long path = blockIdx.x, begin = first[path];
    unsigned char *state = workspace ? workspace + STATE * begin : (unsigned char *)block_memory + SCRATCH;
    Problem p;
    p.matrix = kernels + matrix[path];
    p.stride = stride[path];
    p.blocks = blocks + begin / LANES;
    p.sign = sign + begin;
    p.lanes = (int)(first[path + 1] - begin);
    p.f = (double *)state;
    p.flags = state + 8ll * p.lanes;
    p.scratch = (Scratch *)block_memory;
    double *beta = betas + n_penalties * begin;
    double rho = 0.0;
    int good = 0;
    for (long long c = 0; c < n_penalties; ++c, beta += p.lanes) {
        const double bound = penalties[c];
        long long done = 0;
        int same = 0;
        if (c == 0)
            start_cold(&p, beta, bound);
        else
            same = start_warm(&p, beta, beta - p.lanes, bound, penalties[c - 1], good);
        good = same || solve(&p, beta, bound, tolerance, limit, &done);
        if (!same)
            rho = intercept(&p);
        if (threadIdx.x == 0) {
            rhos[path * n_penalties + c] = rho;
            iterations[path * n_penalties + c] = done;
            converged[path * n_penalties + c] = (unsigned char)good;
        }
    }
}
