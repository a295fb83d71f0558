"""Kernels that read and write the protocol's messages, for those that have nothing unusual about them."""
