/* CUDA thread blocks on one processor core, for tests: what path.cu needs of CUDA, in C11.

   Every thread of a block is a coroutine with its own stack. SYNC and SHUFFLE give way to the next one. A warp runs
   on to its next SYNC before another warp does anything, in an order that `emulator_schedule` chooses (0: ascending,
   1: descending, otherwise at random from that seed); a result that depends on the order shows a race. Shared
   memory is filled with NaN before each block. Threads that part at a barrier end the process.

   With -DPOSIX_THREADS they are threads of the system, much slower, for a compiler's detector of data races. */

#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define MAX_THREADS 512
#define STACK (64 << 10)

typedef struct {
    unsigned x;
} Index;
static Index blockIdx, blockDim;
static double *emulator_memory;
static double emulator_exchange[2][MAX_THREADS];
int emulator_schedule = 0;

#define KERNEL static
#define DEVICE static inline
#define BLOCK_MEMORY double *const block_memory = emulator_memory
#define WARP (blockDim.x < 32 ? (int)blockDim.x : 32)
#define UNROLL
#define SHUFFLE(value, step) shuffled(value, step)
#define LAUNCH_BOUNDS(threads, blocks)

#ifdef POSIX_THREADS

static __thread Index threadIdx;
static __thread int parity;
static pthread_barrier_t block_barrier, warp_barriers[MAX_THREADS];

#define SYNC() pthread_barrier_wait(&block_barrier)

static double shuffled(double value, unsigned step) {
    double *exchange = emulator_exchange[parity ^= 1];
    exchange[threadIdx.x] = value;
    pthread_barrier_wait(&warp_barriers[threadIdx.x / WARP]);
    return exchange[threadIdx.x ^ step];
}

typedef struct {
    unsigned thread;
    void (*kernel)(void);
} Start;

static void *run_thread(void *start) {
    threadIdx.x = ((Start *)start)->thread;
    ((Start *)start)->kernel();
    return NULL;
}

static void run_grid(unsigned blocks, unsigned threads, size_t shared, void (*kernel)(void)) {
    pthread_t running[MAX_THREADS];
    Start starts[MAX_THREADS];
    blockDim.x = threads;
    emulator_memory = malloc(shared);
    pthread_barrier_init(&block_barrier, NULL, threads);
    for (unsigned warp = 0; warp < threads / WARP; ++warp)
        pthread_barrier_init(&warp_barriers[warp], NULL, WARP);
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        memset(emulator_memory, 0xff, shared);
        for (unsigned t = 0; t < threads; ++t) {
            starts[t] = (Start){t, kernel};
            pthread_create(&running[t], NULL, run_thread, &starts[t]);
        }
        for (unsigned t = 0; t < threads; ++t)
            pthread_join(running[t], NULL);
    }
    free(emulator_memory);
}

#else

static Index threadIdx;

enum { AT_WARP = 1, AT_BLOCK, DONE };
static struct {
    jmp_buf here;
    char *stack;
    int started, parity;
} coroutines[MAX_THREADS];
static jmp_buf scheduler;
static ucontext_t birth;
static void (*body)(void);

static void give_way(int state) {
    const unsigned me = threadIdx.x;
    if (!_setjmp(coroutines[me].here))
        _longjmp(scheduler, state);
}

static double shuffled(double value, unsigned step) {
    const unsigned me = threadIdx.x;
    double *exchange = emulator_exchange[coroutines[me].parity ^= 1];
    exchange[me] = value;
    give_way(AT_WARP);
    return exchange[me ^ step];
}

#define SYNC() give_way(AT_BLOCK)

static void born(void) {
    body();
    _longjmp(scheduler, DONE);
}

static int resume(unsigned thread) {
    threadIdx.x = thread;
    const int state = _setjmp(scheduler);
    if (state)
        return state;
    if (coroutines[thread].started)
        _longjmp(coroutines[thread].here, 1);
    coroutines[thread].started = 1;
    getcontext(&birth);
    birth.uc_stack.ss_sp = coroutines[thread].stack;
    birth.uc_stack.ss_size = STACK;
    birth.uc_link = NULL;
    makecontext(&birth, born, 0);
    setcontext(&birth);
    abort();
}

static void ordered(unsigned *order, unsigned count) {
    for (unsigned n = 0; n < count; ++n)
        order[n] = emulator_schedule == 1 ? count - 1 - n : n;
    for (unsigned n = count; emulator_schedule > 1 && n > 1; --n) {
        const unsigned other = (unsigned)rand() % n, last = order[n - 1];
        order[n - 1] = order[other];
        order[other] = last;
    }
}

/* Run a warp until all of its threads wait for the block or have ended; which of the two. */
static int run_warp(unsigned warp) {
    static unsigned order[32];
    static volatile int state;
    static volatile unsigned n;
    do {
        ordered(order, (unsigned)WARP);
        for (n = 0; n < (unsigned)WARP; ++n) {
            const int reached = resume(warp * WARP + order[n]);
            if (n && reached != state) {
                fprintf(stderr, "threads of warp %u part at a barrier\n", warp);
                abort();
            }
            state = reached;
        }
    } while (state == AT_WARP);
    return state;
}

/* All blocks of a grid, one after the other. */
static void run_grid(unsigned blocks, unsigned threads, size_t shared, void (*kernel)(void)) {
    static unsigned order[MAX_THREADS];
    static volatile unsigned block, n;
    static volatile int state;
    body = kernel;
    blockDim.x = threads;
    srand((unsigned)emulator_schedule);
    for (unsigned t = 0; t < threads; ++t)
        coroutines[t].stack = malloc(STACK);
    emulator_memory = malloc(shared);
    for (block = 0; block < blocks; ++block) {
        blockIdx.x = block;
        memset(emulator_memory, 0xff, shared);
        for (unsigned t = 0; t < threads; ++t)
            coroutines[t].started = 0;
        do {
            ordered(order, threads / WARP);
            for (n = 0; n < threads / WARP; ++n) {
                const int reached = run_warp(order[n]);
                if (n && reached != state) {
                    fprintf(stderr, "warps of block %u part at a barrier\n", block);
                    abort();
                }
                state = reached;
            }
        } while (state != DONE);
    }
    free(emulator_memory);
    for (unsigned t = 0; t < threads; ++t)
        free(coroutines[t].stack);
}

#endif
