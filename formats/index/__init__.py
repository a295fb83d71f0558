"""Index files: their form, and kernels over their entries."""
