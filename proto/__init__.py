"""The contract between Penstock's processes: messages, record layout, errors, names."""

import os

# gRPC's core writes lines of its own to stderr for every broken connection and refused handshake; its errors reach us
# as exceptions. Its own handling of forks ends a child now and then (1.85), whatever that does. It reads the variables
# when it is loaded, so this comes before any import of it in the modules here.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
