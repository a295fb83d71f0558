"""Kernels over records that become records of another topic: sent back, decided or due."""
