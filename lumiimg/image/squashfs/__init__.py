"""Squashfs 4.0, read lazily and with a bound on everything; `format` has its records, for who writes one, too."""
