// Conditional prefix sum in a single pass over memory: every element is read once and written once.
//
//   y_i = sum over j <= i of x_j * s_j,   s_j = (number of k < j with x_k > 0) mod 2,   x_j in [-10, 9]
//
// A stretch of the array is summed up by three numbers: `flips`, its parity of positives; `kept`, its sum if it starts
// switched off; `all`, its plain sum. If it starts switched on, it adds all - kept. So (flips, kept, all) of two
// stretches combine, and blocks can work side by side: each publishes what its tile does, looks back over its
// predecessors' words until it meets one that already knows the sum from the array's start, publishes its own such word,
// and writes its tile (decoupled look-back: Merrill and Garland, "Single-pass parallel prefix scan with decoupled
// look-back", 2016).
//
// A word is one 64-bit value, so that no fence is needed between its parts:
//   bits 63..48  number of the launch; a word of an earlier launch is not there yet
//   bit  47      1: sum from the array's start (bits 31..0); 0: the tile alone (kept in bits 19..0, all in 39..20)
//   bit  46      parity of positives, from the start or of the tile alone
//
// Parities come first everywhere and cost almost nothing (ballots and population counts); once the parity in front of
// a stretch is known relative to its neighbourhood, only plain sums are left. The two sums of up to 3072 elements fit
// 16 bits each and travel as one integer, all * 65536 + kept.
//
// Four consecutive elements of a lane are kept as the bytes x + 10 (0 to 19) of one integer: their parities, what
// counts of them, and their partial sums are then a few operations on all four at once.

#ifndef THREADS
#define THREADS 256  // threads a block
#endif
#ifndef SEGMENTS
#define SEGMENTS 8   // 16-byte loads a thread; a warp has SEGMENTS rows of 128 consecutive elements
#endif
#ifndef BLOCKS
#define BLOCKS 4     // blocks that are to fit on a multiprocessor, which bounds the registers
#endif
#ifndef LOOK
#define LOOK 1       // words read at a time and lane when looking back
#endif
#ifndef TICKETS
#define TICKETS 1    // 1: tiles are taken in order from a counter; 0: by block index, in order only in practice
#endif

#define WARPS (THREADS / 32)
#define TILE (THREADS * SEGMENTS * 4)
#define EVERY 0xffffffffu
#define BYTES 0x01010101u  // times b: four bytes b

typedef unsigned int u32;
typedef unsigned long long u64;

static_assert(THREADS % 32 == 0 && WARPS <= 32, "a block is up to 32 whole warps");
static_assert(SEGMENTS * 128 * 10 < 32768, "a warp's sums must fit 16 bits");
static_assert(TILE * 10 < (1 << 19), "a tile's sums must fit 20 bits");

__device__ __forceinline__ u64 word_of_tile(u32 launch, u32 flips, int kept, int all) {
    return (u64)launch << 48 | (u64)flips << 46 | (u64)((u32)all & 0xfffff) << 20 | ((u32)kept & 0xfffff);
}

__device__ __forceinline__ u64 word_from_start(u32 launch, u32 parity, int sum) {
    return (u64)launch << 48 | (u64)1 << 47 | (u64)parity << 46 | (u32)sum;
}

// Words are read and written whole, past the multiprocessor's own cache.
__device__ __forceinline__ u64 read_word(const u64 *word) {
#ifdef __CUDA_ARCH__
    u64 value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
#else
    return *(const volatile u64 *)word;
#endif
}

__device__ __forceinline__ void write_word(u64 *word, u64 value) {
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
#else
    *(volatile u64 *)word = value;
#endif
}

__device__ __forceinline__ int low20(u64 word) { return (int)((u32)word << 12) >> 12; }

__device__ __forceinline__ u32 pack(int4 v) {
    return (u32)((v.w * 256 + v.z) * 65536 + (v.y * 256 + v.x)) + 10 * BYTES;
}

// Bit 7 of byte i: parity of positives in bytes 0 to i.
__device__ __forceinline__ u32 parities_in(u32 packed) {
    u32 odd = (packed + 117 * BYTES) & 128 * BYTES;  // x + 10 + 117 > 127 if and only if x > 0
    odd ^= odd << 8;
    return odd ^ odd << 16;
}

// The bytes that are met switched on, the others as those of x = 0; `on` is the state in front of byte 0.
__device__ __forceinline__ u32 kept_in(u32 packed, u32 on) {
    const u32 before = parities_in(packed) << 8 ^ (on ? 128 * BYTES : 0);
    const u32 mask = (before >> 7) * 255;
    return (packed & mask) | (10 * BYTES & ~mask);
}

// start plus the sum of the x in the first `count` bytes.
__device__ __forceinline__ int add_bytes(u32 packed, int count, int start) {
    return (int)__dp4a(packed, BYTES >> 8 * (4 - count), (u32)(start - 10 * count));
}

// Inclusive sums over the lanes of a warp, of several values side by side, so that their latencies overlap.
template <int COUNT>
__device__ __forceinline__ void warp_scan(int (&values)[COUNT], u32 lane) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
#ifdef __CUDA_ARCH__  // the shuffle itself says which lanes have a partner
            asm volatile(
                "{ .reg .s32 other; .reg .pred paired;\n"
                "  shfl.sync.up.b32 other|paired, %0, %1, 0, -1;\n"
                "  @paired add.s32 %0, other, %0; }"
                : "+r"(values[k])
                : "r"(step));
#else
            const int other = __shfl_up_sync(EVERY, values[k], step);
            if (lane >= step) values[k] += other;
#endif
        }
    }
}

// The word that `tile`'s predecessor has, or will have: parity and sum from the array's start, worked out by one warp.
__device__ __forceinline__ u64 look_back(const u64 *words, int tile, u32 launch, u32 lane) {
    u32 flips = 0;  // of the tiles looked at so far, which lie between those still to be seen and `tile`
    int kept = 0, all = 0;
    const u64 start = word_from_start(launch, 0, 0);  // stands for what lies before the array
    for (int nearest = tile - 1;; nearest -= 32 * LOOK) {
        u64 group[LOOK];
#pragma unroll
        for (int g = 0; g < LOOK; g++) {
            const int at = nearest - 32 * g - (int)lane;
            group[g] = at >= 0 ? read_word(words + at) : start;
        }
#pragma unroll
        for (int g = 0; g < LOOK; g++) {
            const int at = nearest - 32 * g - (int)lane;
            u64 word = group[g];
            u32 known, last;  // lanes whose word is from the start; the lane beyond which nothing is needed
            for (;;) {
                u32 there = __ballot_sync(EVERY, (u32)(word >> 48) == launch);
                known = __ballot_sync(EVERY, word >> 47 == ((u64)launch << 1 | 1));
                last = known ? __ffs(known) - 1 : 31;
                if (!(~there & (EVERY >> (31 - last)))) break;
                word = at >= 0 ? read_word(words + at) : start;
            }
            bool counts = lane <= last;
            u32 parities = __ballot_sync(EVERY, counts && (word >> 46 & 1));
            u32 before = __popc(parities & ~((2u << lane) - 1)) & 1;  // tiles further back have higher lanes
            bool from_start = word >> 47 & 1;
            int own_kept = from_start ? (int)(u32)word : low20(word);
            int own_all = from_start ? 0 : low20(word >> 20);
            int group_kept = __reduce_add_sync(EVERY, counts ? (before ? own_all - own_kept : own_kept) : 0);
            int group_all = __reduce_add_sync(EVERY, counts ? own_all : 0);
            u32 group_flips = __popc(parities) & 1;
            kept = group_kept + (group_flips ? all - kept : kept);
            all += group_all;
            flips ^= group_flips;
            if (known) return word_from_start(launch, flips, kept);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conditional_scan(const int *__restrict__ x, int *__restrict__ y, long long n, u64 *words, u32 *tickets,
                     u32 first_ticket, u32 launch) {
    __shared__ u32 warp_flips[WARPS];  // of each warp's rows; then the parity in front of them
    __shared__ int warp_sums[WARPS];   // all * 65536 + kept; then the sum in front of them
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;

#if TICKETS
    __shared__ u32 taken;
    if (threadIdx.x == 0) taken = atomicAdd(tickets, 1u) - first_ticket;
    __syncthreads();
    const u32 tile = taken;
#else
    const u32 tile = blockIdx.x;
#endif
    const long long begin = (long long)tile * TILE;
    const int left = n - begin < TILE ? (int)(n - begin) : TILE;  // elements of the tile; only the last may have fewer
    const int first = warp * (SEGMENTS * 128) + lane * 4;
    x += begin;
    y += begin;

    u32 packed[SEGMENTS];
    if (left == TILE) {
        int4 v[SEGMENTS];
#pragma unroll
        for (int k = 0; k < SEGMENTS; k++) v[k] = __ldcs((const int4 *)(x + first + k * 128));
#pragma unroll
        for (int k = 0; k < SEGMENTS; k++) packed[k] = pack(v[k]);
    } else {
#pragma unroll
        for (int k = 0; k < SEGMENTS; k++) {
            const int at = first + k * 128;
            packed[k] = pack(make_int4(at < left ? x[at] : 0, at + 1 < left ? x[at + 1] : 0,
                                       at + 2 < left ? x[at + 2] : 0, at + 3 < left ? x[at + 3] : 0));
        }
    }

    // Parity in front of this lane's elements of each row, counted from the warp's first row: bit k of `parities`.
    const u32 below = (1u << lane) - 1;
    u32 parities = 0, flips = 0;
#pragma unroll
    for (int k = 0; k < SEGMENTS; k++) {
        const u32 odd = __ballot_sync(EVERY, parities_in(packed[k]) >> 31);
        parities |= ((__popc(odd & below) ^ flips) & 1) << k;
        flips ^= __popc(odd);
    }
    flips &= 1;

    // Sums in front of this lane's elements of each row, counted from the warp's first row, both in one integer.
    int own[SEGMENTS], front[SEGMENTS], row_start = 0;
#pragma unroll
    for (int k = 0; k < SEGMENTS; k++) {
        const int kept = add_bytes(kept_in(packed[k], parities >> k & 1), 4, 0);
        front[k] = own[k] = add_bytes(packed[k], 4, 0) * 65536 + kept;
    }
    warp_scan(front, lane);
#pragma unroll
    for (int k = 0; k < SEGMENTS; k++) {
        const int row = __shfl_sync(EVERY, front[k], 31);
        front[k] += row_start - own[k];
        row_start += row;
    }
    if (lane == 0) {
        warp_flips[warp] = flips;
        warp_sums[warp] = row_start;
    }
    __syncthreads();

    if (warp == 0) {  // lane w speaks for warp w
        const u32 own_flips = lane < WARPS ? warp_flips[lane] : 0;
        const int sums = lane < WARPS ? warp_sums[lane] : 0;
        const u32 warps_flips = __ballot_sync(EVERY, own_flips);
        const u32 before = __popc(warps_flips & below) & 1;
        const int warp_kept = (short)sums, all = (sums - warp_kept) >> 16;
        const int kept = before ? all - warp_kept : warp_kept;  // if the tile starts switched off
        int to[2] = {kept, all};
        warp_scan(to, lane);
        const u32 tile_flips = __popc(warps_flips) & 1;
        const int tile_kept = __shfl_sync(EVERY, to[0], 31), tile_all = __shfl_sync(EVERY, to[1], 31);

        u32 parity = 0;
        int sum = 0;
        if (tile > 0) {
            if (lane == 0) write_word(words + tile, word_of_tile(launch, tile_flips, tile_kept, tile_all));
            const u64 before_tile = look_back(words, tile, launch, lane);
            parity = before_tile >> 46 & 1;
            sum = (int)(u32)before_tile;
        }
        if (lane == 0)
            write_word(words + tile, word_from_start(launch, parity ^ tile_flips,
                                                     sum + (parity ? tile_all - tile_kept : tile_kept)));
        if (lane < WARPS) {
            const int kept_before = to[0] - kept, all_before = to[1] - all;
            warp_flips[lane] = parity ^ before;
            warp_sums[lane] = sum + (parity ? all_before - kept_before : kept_before);
        }
    }
    __syncthreads();

    const u32 parity = warp_flips[warp];
    const int sum = warp_sums[warp];
#pragma unroll
    for (int k = 0; k < SEGMENTS; k++) {
        const int kept = (short)front[k], all = (front[k] - kept) >> 16;
        const int start = sum + (parity ? all - kept : kept);
        const u32 bytes = kept_in(packed[k], (parities >> k & 1) ^ parity);
        const int4 out = make_int4(add_bytes(bytes, 1, start), add_bytes(bytes, 2, start), add_bytes(bytes, 3, start),
                                   add_bytes(bytes, 4, start));
        const int at = first + k * 128;
        if (left == TILE) {
            __stcs((int4 *)(y + at), out);
        } else {
            if (at < left) y[at] = out.x;
            if (at + 1 < left) y[at + 1] = out.y;
            if (at + 2 < left) y[at + 2] = out.z;
            if (at + 3 < left) y[at + 3] = out.w;
        }
    }
}
