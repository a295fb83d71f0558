"""Certificates, credentials, signatures, and who may call what."""
