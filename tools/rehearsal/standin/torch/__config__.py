"""A stand-in for torch.__config__."""


def parallel_info():
    return "OpenMP not found"


def show():
    return ""
