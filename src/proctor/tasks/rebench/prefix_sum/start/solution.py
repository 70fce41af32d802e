"""Conditional prefix sum: y_i = sum over j <= i of x_j, counting only the x_j before which an odd number of x_k > 0.

This is the plain way: one scan to count positives, one to sum what counts. Each scan reads and writes the whole array.
"""

import torch

CHUNK = 1 << 27  # elements worked on at a time; larger than the timed inputs, so the whole array at once


def prefix_sum(x, out):
    """Fill `out` from `x`; both int32 of shape (n,), on the same device. `x` must not be changed."""
    positives = torch.zeros((), dtype=torch.int32, device=x.device)  # count of x_k > 0 before the chunk
    total = torch.zeros((), dtype=torch.int32, device=x.device)  # y just before the chunk
    for begin in range(0, x.numel(), CHUNK):
        part = x[begin : begin + CHUNK]  # (m,)
        result = out[begin : begin + CHUNK]  # (m,), a view of out
        positive = (part > 0).to(torch.int32)
        before = torch.cumsum(positive, 0, dtype=torch.int32) - positive + positives  # x_k > 0 with k < j
        torch.cumsum(part * (before % 2), 0, dtype=torch.int32, out=result)
        if x.numel() > CHUNK:  # carry over into the next chunk
            result += total
            positives = before[-1] + positive[-1]
            total = result[-1].clone()
