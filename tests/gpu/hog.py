"""Takes the memory of the first GPU but for some MiB, until standard input ends: `hog.py LIBCUDART MIB`."""

import ctypes
import sys

cuda, left_mib = ctypes.CDLL(sys.argv[1]), int(sys.argv[2])
free, total, memory = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
codes = [cuda.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))]
codes.append(cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(free.value - (left_mib << 20))))
print(*codes, flush=True)  # noqa: T201 - for the test
sys.stdin.read()
