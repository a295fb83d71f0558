"""A server of gRPC calls over HTTP/2, for the event loop of a gateway."""
