"""Parts of a job's process: the cxi provider of its libfabric, the ROCr below, and the HIP runtime of each library.

A built-in provider is linked with libcxi (libfabric prov/cxi/configure.m4); any other is the file `libcxi-fi.so`.
Where that is searched: src/fabric.c, `ofi_load_dl_prov`, `ofi_find_prov_libs` and `ofi_load_preferred_dl_prov`, v1.11
to v2.6; fabric(7); compared with what `fi_info -l` of 1.17.0 and 2.1.0 does. FI_PROVIDER_PATH replaces the default of
libfabric: to ask the loader, then to search the folder that was compiled in.

From 1.18 on, a parameter may also be set in libfabric's own file instead of a variable: `libfabric.conf`, in a folder
that was compiled in (src/var.c, `load_conf` and `fi_param_get`).
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.elf import dlsym, find_undefined
from lumiimg.fabric.path import LIBCXI, LIBFABRIC, PROVIDER_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lumiimg.elf import LoadedObject, Process
    from lumiimg.image import RootFileSystem

PROVIDER_PATH = "FI_PROVIDER_PATH"
# The strings precede the debug information, which is what makes a library large.
_SCAN_LIMIT_BYTES = 32 * 1024 * 1024
_HELP, _HELP_LIMIT_BYTES = b"\0Search for providers in specific path", 8192
_DEFAULT = b"(default: "
_MAX_NAMES = 256
_FILE = re.compile(rf"\+/.*/{re.escape(PROVIDER_FILE)}", re.DOTALL)
"""An element of FI_PROVIDER_PATH that names the provider itself."""
_CONF = re.compile(rb"\0(/[^\0]{0,4000}/libfabric\.conf)\0")
_CONF_LINE = re.compile(rb"[^\n]{0,2046}\n|[^\n]{1,2047}")
"""A line as fgets returns it: one that is longer than its buffer counts as several."""
_PREFER_CONF = "FI_PREFER_SYSCONFIG"
_TRUE = frozenset({"1", "true", "yes", "on"})
_FILE_HELP = b"full path to a provider library"
_RESTRICTED = b"restricted_dl: "
_ENTRY = "fi_prov_ini"
"""Function that a provider exports (src/fabric.c, `ofi_reg_dl_prov`)."""
HSA = "libhsa-runtime64.so"
"""ROCr, by the name that `--enable-rocr-dlopen` opens: a link in development packages (src/hmem_rocr.c)."""
_ROCR_FUNCTION = b"\0hsa_amd_pointer_info\0"
"""Function of ROCr by which libfabric recognizes GPU memory: its name is there, linked or opened (src/hmem_rocr.c)."""

_HIP = re.compile(r"libamdhip64(?:-[0-9a-f]{8})?\.so(?:\.[0-9]+)*")
"""auditwheel adds a part of the digest to the name of a library that it copies into a wheel."""
_CUDA = re.compile(r"libcuda(?:rt)?\.so[.0-9]*")
_OPENS_CUDA = re.compile(rb"\0(libcuda(?:rt)?\.so[.0-9]*)\0")
_ROCM_NAMES = re.compile(rb"libamdhip64\.so|libhsa-runtime64\.so|\0hip[A-Z]\w*\0|\0hsa_\w*\0")
"""Names of libraries to open, or of functions to call."""


def allows(providers: str, name: str) -> bool:
    """Whether FI_PROVIDER allows a core provider, given by its name in lower case.

    The list is separated by commas: spaces count, an empty list names no provider, and a leading `^` excludes all that
    are listed. `cxi;ofi_rxm` does not name cxi (src/fabric.c, `ofi_create_filter` and `ofi_apply_prov_post_filter`,
    v1.11 to v2.6).
    """
    names = providers.removeprefix("^").encode("utf-8", "surrogateescape").lower().split(b",")
    return (name.encode() in names) is not providers.startswith("^")


@dataclass(frozen=True, slots=True)
class LibfabricConf:
    """The configuration file that a libfabric reads."""

    path: str = ""
    values: Mapping[str, str] = field(default_factory=dict)

    def decides(self, name: str, variables: Callable[[str], str | None]) -> bool:
        """Whether the file, not a variable, sets a parameter; `variables` are those of the process."""
        prefers = variables(_PREFER_CONF)
        prefers = self.values.get(_PREFER_CONF, "") if prefers is None else prefers
        return name in self.values and (variables(name) is None or prefers.lower() in _TRUE)


def read_libfabric_conf(process: Process, root: RootFileSystem) -> LibfabricConf:
    """Return what the libfabric of a process reads; empty for a recorded one, whose folder is not known."""
    libfabric = process.find(LIBFABRIC)
    found = _CONF.search(_read(root, process.config.absolute(libfabric.path)) or b"") if libfabric else None
    path = os.fsdecode(found[1]) if found else ""
    values: dict[str, str] = {}
    for line in _CONF_LINE.findall((_read(root, path) if path else None) or b""):
        name, equals, value = line.partition(b"\0")[0].partition(b"=")
        if equals:
            values.setdefault(os.fsdecode(name), os.fsdecode(value.removesuffix(b"\n")))
    return LibfabricConf(path, values)


def provider_folders(text: str | None) -> tuple[str, ...]:
    """Return the folders that FI_PROVIDER_PATH names: a leading `@` concerns their order, `+` marks a file."""
    rest = (text or "").removeprefix("@")
    return tuple(element for element in rest.split(":") if not element.startswith("+")) if rest else ()


def cxi_provider(process: Process, root: RootFileSystem, provider_path: str | None) -> str | None:
    """Return the file that contains the cxi provider and loads in this process; None without one.

    `provider_path` is FI_PROVIDER_PATH. A separate provider is opened, as by libfabric: it is in the process then.
    """
    libfabric = process.find(LIBFABRIC)
    if libfabric is None:
        return None
    if LIBCXI in libfabric.facts.needed:
        return libfabric.path if process.find(LIBCXI) is not None else None
    for name in islice(dict.fromkeys(_names(process, root, libfabric, provider_path or "")), _MAX_NAMES):
        if "/" in name and not root.is_file(name):
            continue
        outcome = process.dlopen(name, libfabric)
        if outcome.root is None or not outcome.ok or not _is_provider(process, outcome.root):
            continue
        symbols = find_undefined(process, outcome.objects)
        if not symbols.found or not symbols.is_sure:
            return outcome.root.path
    return None


def _is_provider(process: Process, file: LoadedObject) -> bool:
    """Whether a library exports what libfabric looks up in it; of a recorded one, only the name is known."""
    try:
        return file.is_recorded or dlsym(process, file, _ENTRY) is not None
    except (OSError, BadInputError):
        return False


def _names(process: Process, root: RootFileSystem, libfabric: LoadedObject, provider_path: str) -> Iterator[str]:
    """Yield what libfabric passes to dlopen for the cxi provider, but not relative paths: their folder is unknown.

    Files come first (from 1.21 on; before, `+/file` was the name of a folder), then folders, which replace its own one.
    """
    own, asks_loader, takes_files = _provider_defaults(_read(root, process.config.absolute(libfabric.path)) or b"")
    elements = provider_path.removeprefix("@").split(":")
    if takes_files:
        yield from (file[1:] for file in elements if _FILE.fullmatch(file))
    elif any(element.startswith("+") for element in elements):
        own = tuple(elements)
    if asks_loader and not provider_path:
        yield PROVIDER_FILE
    folders = provider_folders(provider_path) or own or (f"{libfabric.path.rpartition('/')[0]}/libfabric",)
    yield from (f"{folder.rstrip('/')}/{PROVIDER_FILE}" for folder in folders if folder.startswith("/"))


def why_no_rocr(process: Process, root: RootFileSystem) -> str | None:
    """Return why the libfabric of a process does not, or may not, recognize AMD GPU memory; None where it does.

    A ROCr that it opens itself is opened here, too; whether a libfabric in a snapshot opens one is not recorded.
    """
    libfabric = process.find(LIBFABRIC)
    if libfabric is None or any(need.startswith(HSA) for need in libfabric.facts.needed):
        return None
    data = _read(root, process.config.absolute(libfabric.path))
    if data is not None and _ROCR_FUNCTION not in data:
        return "it was built without ROCr"
    opens = "opens" if data is not None else "does not need ROCr, and may open"
    return None if process.dlopen(HSA, libfabric).ok else f"it {opens} {HSA} by that name, and does not find it"


def _read(root: RootFileSystem, path: str) -> bytes | None:
    """Return as much of a file as contains a library's strings; None if it is gone, or only recorded."""
    try:
        with contextlib.closing(root.open(path)) as file:
            return file.read_at(0, min(file.size, _SCAN_LIMIT_BYTES))
    except (OSError, BadInputError):
        return None


def _provider_defaults(data: bytes) -> tuple[tuple[str, ...], bool, bool]:
    """Return (default folders, whether it asks the loader, whether `+` marks a file), by the strings of a libfabric.

    The default is PROVDLDIR, which its help for FI_PROVIDER_PATH names. It passes `libcxi-fi.so` to dlopen if its list
    of providers has cxi, from 1.21 on. Without strings there are no folders, and both answers are False.
    """
    start = data.find(_HELP)
    text = data[start + 1 : start + _HELP_LIMIT_BYTES].partition(b"\0")[0]
    folders = text.rpartition(_DEFAULT)[2].removesuffix(b")")
    if start < 0 or not folders.startswith(b"/"):
        return (), False, False
    asks_loader = b"\0cxi\0" in data and _RESTRICTED not in data
    return tuple(folders.decode("utf-8", "replace").split(":")), asks_loader, _FILE_HELP in text


def is_hip(name: str) -> bool:
    """Whether a name, or a path, is that of a HIP runtime."""
    return _HIP.fullmatch(name.rpartition("/")[2]) is not None


def built_for_cuda(process: Process, root: RootFileSystem, plugin: LoadedObject, rccl: LoadedObject) -> str | None:
    """Return the evidence that a plugin is only for CUDA while its RCCL is for HIP; None without any.

    aws-ofi-nccl for CUDA opens libcuda.so, or is linked with libcudart (src/nccl_ofi_cuda.cpp; from 1.14 on statically,
    which opens libcuda.so.1): on an AMD GPU its init fails. For HIP it calls HIP (src/nccl_ofi_rocm.cpp).
    """
    if not any(map(is_hip, rccl.facts.needed)) or any(is_hip(name) for name in plugin.facts.needed):
        return None
    data = _read(root, process.config.absolute(plugin.path)) or b""
    if _ROCM_NAMES.search(data):
        return None
    if (needed := next(filter(_CUDA.fullmatch, plugin.facts.needed), None)) is not None:
        return f"it needs {needed}"
    opened = _OPENS_CUDA.search(data)
    return f"it opens {os.fsdecode(opened[1])}" if opened else None


def may_be_called(root: RootFileSystem, plugin: str, name: str, *, of_ofi: bool) -> bool:
    """Whether a plugin may have a network with the name in NCCL_NET: the name is one of its strings.

    `of_ofi`: the name is one that aws-ofi-nccl has ever had. From 1.13 on it reads NCCL_NET itself, and accepts any of
    them (src/nccl_ofi_interface_nvidia.cpp, nvidia_plugin_name_fixup); the linker may then store `Libfabric` only as
    the end of `AWS Libfabric`. Up to 1.12, like aws-ofi-rccl, it has one name and does not read NCCL_NET.
    """
    data = _read(root, plugin) or b""
    return (of_ofi and b"\0NCCL_NET\0" in data) or b"\0%b\0" % os.fsencode(name).lower() in data.lower()


def users_of_hip(process: Process, runtimes: Sequence[LoadedObject]) -> dict[LoadedObject, frozenset[LoadedObject]]:
    """Return, for each library that needs a HIP runtime, the runtimes that serve it."""
    needing = (loaded for loaded in process.objects if any(map(is_hip, loaded.facts.needed)))
    return {loaded: _runtimes_of(process, loaded, runtimes) for loaded in needing}


def _runtimes_of(process: Process, loaded: LoadedObject, runtimes: Sequence[LoadedObject]) -> frozenset[LoadedObject]:
    """Return the runtimes that serve a library: for each version that it needs, the first that defines it."""
    seen = [each for each in process.scopes.of(loaded) if each in runtimes]
    asked = {need.name for need in loaded.facts.version_needs if is_hip(need.file)}
    firsts = (next((each for each in seen if _defines(each, version)), None) for version in asked)
    return frozenset(filter(None, firsts)) or frozenset(seen[:1])


def _defines(runtime: LoadedObject, version: str) -> bool:
    return not runtime.facts.version_definitions or version in runtime.facts.version_definitions
