"""Build ROCm AI container images for HPE Slingshot machines, and prove which network they use."""

__version__ = "0.1.0"
