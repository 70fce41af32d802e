// Runs scan.cu on the CPU, one thread for each CUDA thread, one block at a time: slow, and exact about what warps and
// barriers exchange. Compiled by test_prefix_sum_reference.py with KERNEL naming the source.
#include <pthread.h>

#include <cstring>
#include <thread>
#include <vector>

struct Index {
    unsigned x;
};
struct int4 {
    int x, y, z, w;
};
static int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

thread_local Index threadIdx, blockIdx;

struct Warp {
    pthread_barrier_t barrier;
    unsigned slots[32];
};
static std::vector<Warp> warps;
static pthread_barrier_t block_barrier;

// Every lane of a warp gives a value and sees all of them.
template <class Use>
static auto exchange(unsigned value, Use use) {
    Warp &warp = warps[threadIdx.x / 32];
    warp.slots[threadIdx.x % 32] = value;
    pthread_barrier_wait(&warp.barrier);
    auto result = use(warp.slots);
    pthread_barrier_wait(&warp.barrier);
    return result;
}

static unsigned __ballot_sync(unsigned, int predicate) {
    return exchange(predicate != 0, [](const unsigned *slots) {
        unsigned mask = 0;
        for (int lane = 0; lane < 32; lane++) mask |= slots[lane] << lane;
        return mask;
    });
}
static int __shfl_up_sync(unsigned, int value, unsigned step) {
    const unsigned lane = threadIdx.x % 32;
    return exchange(value, [=](const unsigned *slots) { return (int)slots[lane >= step ? lane - step : lane]; });
}
static int __shfl_sync(unsigned, int value, int source) {
    return exchange(value, [=](const unsigned *slots) { return (int)slots[source]; });
}
static int __reduce_add_sync(unsigned, int value) {
    return exchange(value, [](const unsigned *slots) {
        unsigned sum = 0;
        for (int lane = 0; lane < 32; lane++) sum += slots[lane];
        return (int)sum;
    });
}
static void __syncthreads() { pthread_barrier_wait(&block_barrier); }
static int __popc(unsigned bits) { return __builtin_popcount(bits); }
static int __ffs(unsigned bits) { return __builtin_ffs(bits); }
static unsigned __dp4a(unsigned a, unsigned b, unsigned sum) {
    for (int i = 0; i < 32; i += 8) sum += (a >> i & 255) * (b >> i & 255);
    return sum;
}
static unsigned atomicAdd(unsigned *at, unsigned value) { return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST); }
static int4 __ldcs(const int4 *at) { return *at; }
static void __stcs(int4 *at, int4 value) { *at = value; }

#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#include KERNEL

extern "C" int tile_size() { return TILE; }

extern "C" void run_block(unsigned block, const int *x, int *y, long long n, unsigned long long *words,
                          unsigned *tickets, unsigned first_ticket, unsigned launch) {
    warps = std::vector<Warp>(WARPS);
    for (auto &warp : warps) pthread_barrier_init(&warp.barrier, nullptr, 32);
    pthread_barrier_init(&block_barrier, nullptr, THREADS);
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < THREADS; i++)
        threads.emplace_back([=] {
            threadIdx.x = i;
            blockIdx.x = block;
            conditional_scan(x, y, n, words, tickets, first_ticket, launch);
        });
    for (auto &thread : threads) thread.join();
    for (auto &warp : warps) pthread_barrier_destroy(&warp.barrier);
    pthread_barrier_destroy(&block_barrier);
}
