"""The contract between Penstock's processes: messages, record layout, errors, names."""

import os

# gRPC's core writes lines of its own to stderr for every broken connection and refused handshake; its errors reach us
# as exceptions. What a forked child makes works if gRPC handles forks in full: by itself (1.85) it does so in part, and
# some children end whatever they do. It reads the variables when it is loaded, so this comes before any import of it in
# the modules here.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "1")
