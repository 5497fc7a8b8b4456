"""Squashfs 4.0, read lazily and with limits on everything; `format` defines its records, also for writing."""
