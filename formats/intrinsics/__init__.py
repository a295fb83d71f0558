"""What kernels are built of: memory access, CRC, text search, and the cache of compiled kernels."""
