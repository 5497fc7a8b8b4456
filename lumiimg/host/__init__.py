"""What a node offers to a container: scanned once, saved to a file, and usable anywhere."""
