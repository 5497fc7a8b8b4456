"""C sources of the stand-ins that a job really runs: RCCL, net plugin, libfabric, libcxi, the libraries of torch.

They do what decides which files are opened, as the originals do, and no more. Nothing is linked with the C library:
what they take from it has been there in every glibc of 64 bits.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lumiimg.fabric.path import PluginVariableRule


def source(name: str) -> str:
    return (Path(__file__).parents[2] / f"fixtures/job/{name}.c").read_text()


LIBC = source("libc")
HIP = "int instance; void *hip_instance(void) { return &instance; }"
HSA = "int hsa_init; int hsa_amd_pointer_info;"
CXI = 'const char *cxil_open_device(void) { return "cxi"; }'
PROVIDER = "extern const char *cxil_open_device(void); const char *fi_prov_ini(void) { return cxil_open_device(); }"

_FABRIC = source("fabric")

_PLUGIN = source("plugin")

_RCCL = source("rccl")

TORCH_HIP = """
extern const char *ncclCommInitRank(void);
const char *all_reduce(void) { return ncclCommInitRank(); }
"""

EXTENSION = source("extension")
"""A module of C for each Python from 3.8 to 3.14, made without its headers (Include/moduleobject.h)."""


def fabric(*, built_in: bool = True, asks_loader: bool = False, default: str = "/usr/lib64/libfabric") -> str:
    """Return a libfabric with cxi in it, or one that looks for a provider in a file."""
    defines = f'#define DEFAULT "{default}"\n'
    defines += "#define BUILT_IN\n" * built_in + "#define ASKS_LOADER\n" * asks_loader
    return defines + LIBC + _FABRIC


def plugin(*versions: int, with_hip: bool = False) -> str:
    """Return a net plugin that offers these versions of the net API."""
    tables = "".join(f"struct net ncclNetPlugin_v{each} = {{plugin_name + 1, init}};\n" for each in versions)
    return ("#define WITH_HIP\n" if with_hip else "") + _PLUGIN + tables


def rccl(version: str, files: tuple[str, ...], accepts: tuple[int, ...], naming: PluginVariableRule) -> str:
    """Return an RCCL of a generation."""
    names, symbols = (
        ", ".join(f'"{each}"' for each in words) for words in (files, [f"ncclNetPlugin_v{v}" for v in accepts])
    )
    wanted = naming.name
    return f'#define VERSION "{version}"\n#define FILES {names}\n#define SYMBOLS {symbols}\n#define NAMING {wanted}\n{LIBC}{_RCCL}'
