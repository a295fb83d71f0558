"""Formats on disk and in batches: layout, constants, kernels, each on one page."""
