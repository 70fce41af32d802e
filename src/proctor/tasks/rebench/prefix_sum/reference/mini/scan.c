/* Conditional prefix sum in one pass over memory, in several threads.
 *
 * A block of the array acts on what comes before it through two numbers, the parity of positives and the sum. A thread
 * takes the next block, works out what the block does to either parity while reading it into its cache, waits for its
 * predecessor's carry, hands its own carry on, and only then writes the block's output, from the cache. So the part that
 * runs in order is a few instructions a block. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

#define BLOCK 32768L /* elements: 128 KiB in and as much out, within a core's own cache */
#define MOST_THREADS 64

typedef struct {
    const int32_t *x;
    int32_t *y;
    long n, blocks;
    atomic_long next;     /* first block that no thread has taken */
    atomic_long finished; /* blocks whose carry has been handed on */
    uint32_t parity, sum; /* the carry after `finished` blocks */
} Job;

/* What a block does: `flips` is its parity of positives, `kept` its sum if it starts switched off, `all` its plain sum
 * (if it starts switched on, it adds all - kept). */
static void summarise(const int32_t *x, long n, uint32_t *flips, uint32_t *kept, uint32_t *all) {
    uint32_t on = 0, sum = 0, total = 0;
    for (long i = 0; i < n; i++) {
        sum += (uint32_t)x[i] & -on;
        total += (uint32_t)x[i];
        on ^= x[i] > 0;
    }
    *flips = on, *kept = sum, *all = total;
}

static void write_block(const int32_t *x, int32_t *y, long n, uint32_t on, uint32_t sum) {
    for (long i = 0; i < n; i++) {
        sum += (uint32_t)x[i] & -on;
        on ^= x[i] > 0;
        y[i] = (int32_t)sum;
    }
}

static void *work(void *argument) {
    Job *job = argument;
    for (;;) {
        long block = atomic_fetch_add(&job->next, 1);
        if (block >= job->blocks) return 0;
        long begin = block * BLOCK, size = job->n - begin < BLOCK ? job->n - begin : BLOCK;
        uint32_t flips, kept, all;
        summarise(job->x + begin, size, &flips, &kept, &all);
        while (atomic_load_explicit(&job->finished, memory_order_acquire) != block) sched_yield();
        uint32_t on = job->parity, sum = job->sum;
        job->parity = on ^ flips;
        job->sum = sum + (on ? all - kept : kept);
        atomic_store_explicit(&job->finished, block + 1, memory_order_release);
        write_block(job->x + begin, job->y + begin, size, on, sum);
    }
}

void prefix_sum(const int32_t *x, int32_t *y, long n, int threads) {
    Job job = {.x = x, .y = y, .n = n, .blocks = (n + BLOCK - 1) / BLOCK};
    pthread_t ids[MOST_THREADS];
    int started = 0;
    while (started + 1 < threads && started < MOST_THREADS && !pthread_create(&ids[started], 0, work, &job)) started++;
    work(&job);
    for (int i = 0; i < started; i++) pthread_join(ids[i], 0);
}
