"""Build ROCm AI container images for HPE Slingshot machines, and prove which network they use."""

__version__ = "0.1.0"

archive: str | None = None
"""Path of the zip file that the program was started from, where it was (.ci/zipapp_main.py)."""
