"""A plugin for CUDA in an image for ROCm: it needs or opens CUDA's libraries, whose driver no node of AMD's has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.shared.elf_builder import library
from tests.shared.job import sources
from tests.shared.job.kinds.place import Planted

if TYPE_CHECKING:
    import random

    from tests.shared.job.world import World

_APIS = (8, 7, 6, 5)
_CUDA = "int cudaGetDevice(void) { return 35; }"
"""cudaErrorInsufficientDriver, which is what it says without a driver of NVIDIA's."""


def plugin_for_cuda(world: World, draw: random.Random) -> Planted:
    names = draw.choice(
        [("libcudart.so.12",), ("libcuda.so.1",), ("libcudart.so.12", "libcuda.so.1"), ("libcudart.so.11.0",)]
    )
    how = draw.choice(["needs", "needs", "opens", "asks weakly", "says the name"])
    there = draw.choice(["nowhere", "nowhere", "in the image", "stub elsewhere"])
    made = [library(world.parts / name, source=_CUDA) for name in names]
    if there != "nowhere":
        folder = world.system.folder if there == "in the image" else "/usr/local/cuda/lib64/stubs"
        for name in names:
            library(world.new(f"{folder}/{name}"), source=_CUDA)
    path = world.plugin_file
    if how == "needs":
        gate = "extern int cudaGetDevice(void); static int no_cuda(void) { return cudaGetDevice(); }"
        world.plugin(path, *made, apis=(), extra=_gated(gate))
    elif how == "asks weakly":
        gate = "extern int cudaGetDevice(void) __attribute__((weak)); static int no_cuda(void) { return cudaGetDevice ? cudaGetDevice() : 0; }"
        world.plugin(path, apis=(), extra=_gated(gate))
    elif how == "says the name":
        world.plugin(path, extra=f'const char words[] = "not for {names[0]}";')
    else:
        gate = f"""static int no_cuda(void)
{{
    void *cuda = dlopen("{names[0]}", NOW);
    int (*device)(void) = cuda ? (int (*)(void))dlsym(cuda, "cudaGetDevice") : 0;
    return device ? device() : 1;
}}
"""
        world.plugin(path, apis=(), extra=sources.LIBC.strip() + "\n" + _gated(gate))
    return Planted(f"{how} {', '.join(names)}, {there}", path if how in {"opens", "says the name"} else None)


def _gated(gate: str) -> str:
    """The plugin's init gives up where the gate says so, as aws-ofi-nccl's does without a CUDA."""
    tables = "".join(
        f"struct net real_v{each}; struct net ncclNetPlugin_v{each} = {{plugin_name + 1, gated}};\n" for each in _APIS
    )
    called = 'static const char *gated(void *hip) { return no_cuda() ? "socket: no CUDA" : init(hip); }\n'
    return f"{gate}\nstatic const char *init(void *hip);\n{called}{tables}"
