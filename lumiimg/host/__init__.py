"""A node's offer to a container: scanned once, written down, and asked about anywhere."""
