"""Dockerfiles: what the catalogue already provides of one, the draft of a layer for the rest, and writing one."""
