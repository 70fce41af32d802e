"""The rebench task `prefix_sum`: make a conditional prefix sum fast, on a GPU (full) or on the CPU (mini)."""
