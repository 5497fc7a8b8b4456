"""Servers: HTTP with deadlines, registries, downloads by digest, mirrors, the store."""
