"""Conditional prefix sum on a GPU: one pass over memory, by a CUDA kernel (scan.cu) or by Triton."""

import importlib

IMPLEMENTATION = "cuda_scan"  # or "triton_scan"

prefix_sum = importlib.import_module(IMPLEMENTATION).prefix_sum
