"""The contract between Penstock's processes: messages, record layout, errors, names."""

import os

# gRPC's core writes lines of its own to stderr for every broken connection and refused handshake; its errors reach us
# as exceptions. It reads the variable when it is loaded, so this comes before any import of it in the modules here.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
