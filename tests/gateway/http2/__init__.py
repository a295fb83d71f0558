"""Tests of the gateway's server of gRPC calls over HTTP/2."""
