"""Conditional prefix sum in Triton, in a single pass over memory: the algorithm of scan.cu, which explains it.

Words differ in one point: a launch number of 22 bits stands above the flag, so that 41 bits remain for the rest:
    bits 63..42  number of the launch
    bit  41      1: sum from the array's start (bits 31..0); 0: the tile alone (kept in 19..0, all in 39..20)
    bit  40      parity of positives
"""

import torch
import triton
import triton.language as tl

TILE = 8192  # elements a program; their sums must fit 20 bits
WARPS = 8
# Words read at a time when looking back: one a thread, for a word that two threads read might differ between them.
WINDOW = 32 * WARPS

LAST_LAUNCH = (1 << 21) - 1  # launches are numbered so that words stay positive


@triton.jit
def _low20(bits):
    """The lowest 20 bits of an int64 as a signed number."""
    return ((bits << 44) >> 44).to(tl.int32)


@triton.jit(do_not_specialize=["first_ticket", "launch"])
def _scan(x_ptr, y_ptr, words_ptr, tickets_ptr, n, first_ticket, launch, TILE: tl.constexpr, WINDOW: tl.constexpr):
    # Tiles are taken in order, so that those a program waits for are always under way.
    tile = tl.atomic_add(tickets_ptr, 1, sem="relaxed") - first_ticket
    at = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    x = tl.load(x_ptr + at, mask=at < n, other=0, eviction_policy="evict_first")  # (TILE,)
    positive = (x > 0).to(tl.int32)
    before = tl.cumsum(positive, 0) - positive  # positives before each element, within the tile
    flips = tl.sum(positive, 0) & 1
    kept = tl.sum(x * (before & 1), 0)
    total = tl.sum(x, 0)

    stamp = launch.to(tl.int64) << 42
    from_start = stamp | (1 << 41)
    parity = tl.full([], 0, tl.int32)  # in front of this tile, as far as it is known; counted from its far end
    sum_kept = tl.full([], 0, tl.int32)
    sum_all = tl.full([], 0, tl.int32)
    if tile > 0:
        own = stamp | (flips.to(tl.int64) << 40)
        own = own | ((total.to(tl.int64) & 0xFFFFF) << 20) | (kept.to(tl.int64) & 0xFFFFF)
        tl.atomic_xchg(words_ptr + tile, own, sem="relaxed")
        nearest = tile - 1
        lanes = tl.arange(0, WINDOW)
        searching = tl.full([], 1, tl.int32)
        while searching > 0:
            places = nearest - lanes
            words = tl.load(words_ptr + places, mask=places >= 0, other=0, volatile=True)
            words = tl.where(places >= 0, words, from_start)  # stands for what lies before the array
            there = (words >> 42) == launch
            known = there & (((words >> 41) & 1) == 1)
            last = tl.min(tl.where(known, lanes, WINDOW), 0)  # nearest word from the start, if any is in sight
            missing = tl.sum(((lanes <= last) & (~there)).to(tl.int32), 0)
            if missing == 0:
                counts = lanes <= last
                odd = tl.where(counts, (words >> 40) & 1, 0).to(tl.int32)
                odd_all = tl.sum(odd, 0)
                further = (odd_all - tl.cumsum(odd, 0)) & 1  # parity of the tiles further back
                own_kept = tl.where(known, words.to(tl.int32), _low20(words))
                own_all = tl.where(known, 0, _low20(words >> 20))
                group_kept = tl.sum(tl.where(counts, tl.where(further == 1, own_all - own_kept, own_kept), 0), 0)
                group_all = tl.sum(tl.where(counts, own_all, 0), 0)
                sum_kept = group_kept + tl.where((odd_all & 1) == 1, sum_all - sum_kept, sum_kept)
                sum_all += group_all
                parity = parity ^ (odd_all & 1)
                nearest -= WINDOW
                searching = tl.where(last < WINDOW, 0, 1).to(tl.int32)

    after = sum_kept + tl.where(parity == 1, total - kept, kept)
    done = from_start | ((parity ^ flips).to(tl.int64) << 40) | (after.to(tl.int64) & 0xFFFFFFFF)
    tl.atomic_xchg(words_ptr + tile, done, sem="relaxed")
    y = sum_kept + tl.cumsum(x * ((before ^ parity) & 1), 0)
    tl.store(y_ptr + at, y, mask=at < n, eviction_policy="evict_first")


class Scan:
    """The kernel, with the words by which its programs tell each other their sums (reused from launch to launch)."""

    def __init__(self, device):
        self.tickets = torch.zeros(1, dtype=torch.int32, device=device)
        self.taken = 0
        self.words = torch.zeros(1 << 16, dtype=torch.int64, device=device)
        self.launches = 0

    def __call__(self, x, out):
        n = x.numel()
        tiles = triton.cdiv(n, TILE)
        if tiles > self.words.numel():
            self.words = torch.zeros(2 * tiles, dtype=torch.int64, device=x.device)
            self.launches = 0
        if self.launches == LAST_LAUNCH:
            self.words.zero_()
            self.launches = 0
        if self.taken + tiles >= 1 << 31:
            self.tickets.zero_()
            self.taken = 0
        self.launches += 1
        _scan[(tiles,)](
            x, out, self.words, self.tickets, n, self.taken, self.launches, TILE=TILE, WINDOW=WINDOW, num_warps=WARPS
        )
        self.taken += tiles


SCANS = {}


def prefix_sum(x, out):
    """Fill `out` from `x`, int32 of shape (n,)."""
    if x.device not in SCANS:
        SCANS[x.device] = Scan(x.device)
    SCANS[x.device](x.contiguous(), out)
