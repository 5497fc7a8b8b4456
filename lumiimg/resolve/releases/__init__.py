"""Releases that nobody wrote down: read from a package index, kept, or derived from the nearest that is known."""
