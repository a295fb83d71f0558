"""Decoders under bytes that a fuzzer finds: ``make fuzz``; every input that it kept is replayed by a test."""
