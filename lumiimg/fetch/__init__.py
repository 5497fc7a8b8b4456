"""Servers: HTTP within a deadline, registries, downloads by digest, mirrors, the store."""
