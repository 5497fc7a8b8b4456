"""Of `gpu/`: GPU code in files."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator

from lumiimg.elf.reader import BytesReader
from lumiimg.gpu.components import kernel_file, read_kernel_file
from lumiimg.gpu.fat_file import read_file
from lumiimg.gpu.rule import fit_of_all, node_gpu
from lumiimg.gpu.source import GpuCodeError
from tests.fuzz.target import Target
from tests.fuzz.targets.scratch import FIXTURES
from tests.shared import gpu_builder as gpu

_PATHS = ("/l/rocblas/library/T_gfx90a-xnack-.hsaco", "/m/miopen/db/gfx90a68.kdb", "/x/k.co")


def _file(data: bytes) -> str:
    found = read_file(BytesReader(data))
    fit_of_all(found, node_gpu("gfx90a"))
    return " ".join(str(target) for targets in found for target in targets)


def _kernels(data: bytes) -> str:
    shown: list[object] = []
    name = data[:64].decode("utf-8", "surrogateescape")
    for path in (*_PATHS, f"/x/{name}.co", f"/miopen/{name}.kdb"):
        named = kernel_file(path)
        with contextlib.suppress(GpuCodeError):
            shown += read_kernel_file(BytesReader(data), path)
        if named and named.target:
            shown.append(named.target)
    return " ".join(map(str, shown))


def _file_seeds() -> Iterator[bytes]:
    plain = gpu.pages(gpu.bundle(*gpu.hip("gfx90a:sramecc+:xnack-", "gfx9-4-generic")), gpu.bundle(*gpu.hip("gfx942")))
    old = gpu.bundle("hip-amdgcn-amd-amdhsa--gfx908+sram-ecc", codes=[gpu.code_object("gfx908", version=1)])
    yield from (plain, old, gpu.library(plain), gpu.library(plain, sections=False), gpu.code_object(flags=0xF00))
    for version in (1, 2, 3):
        yield gpu.library(gpu.pages(*[gpu.compressed(plain, version)] * 2))
    yield next((FIXTURES / "gpu").iterdir()).read_bytes()
    yield gpu.library(None, reference=b"lib/a.so")
    yield from _bad_files()


def _bad_files() -> Iterator[bytes]:
    """What lies, a kind each."""
    one = gpu.bundle(*gpu.hip("gfx90a"))
    yield gpu.library(gpu.bundle(*gpu.hip("gfx90a"), count=1 << 60))
    for offset in (1 << 60, (1 << 64) - 32):
        yield gpu.library(gpu.bundle(*gpu.hip("gfx90a"), offset=offset))
    yield gpu.library(gpu.compressed(gpu.compressed(one)))
    yield from (gpu.library(gpu.bundle()), gpu.library(gpu.compressed(gpu.bundle())))
    for version in (1, 2, 3):
        yield gpu.library(gpu.compressed(one, version, unpacked=3))
        yield gpu.library(gpu.compressed(one, version, whole=(1 << 32) - 1))
    whole = gpu.library(one)
    yield whole.replace(struct.pack("<Q", len(one)), struct.pack("<Q", 4 << 30))
    yield gpu.compressed(bytes(48 << 20))


def _kernel_seeds() -> Iterator[bytes]:
    yield from (gpu.code_object(), b"SQLite format 3\0", b"gfx90a-xnack-", b"gfx942130", gpu.compressed(gpu.bundle()))


TARGETS = (
    Target(
        "gpu-code",
        (
            "gpu.fat_file.read_file",
            "gpu.bundle.read_bundles",
            "gpu.code_object.read_code_object",
            "gpu.target.parse_target",
        ),
        _file,
        _file_seeds,
        (GpuCodeError,),
        "bytes",
    ),
    Target("gpu-kernels", ("gpu.components.read_kernel_file",), _kernels, _kernel_seeds, (GpuCodeError,), "bytes"),
)
