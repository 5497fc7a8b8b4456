"""What the process of a job has: a cxi provider in its libfabric, ROCr under it, and which HIP runtime serves whom.

The built-in provider links libcxi (libfabric prov/cxi/configure.m4). Another is the file `libcxi-fi.so`. Where that is
looked for: src/fabric.c, `ofi_load_dl_prov`, `ofi_find_prov_libs` and `ofi_load_preferred_dl_prov`, v1.11 to v2.6;
fabric(7); compared with what `fi_info -l` of 1.17.0 and 2.1.0 does. FI_PROVIDER_PATH takes the place of what libfabric
would do by itself: ask the loader, then look in the folder that was compiled into it.

What a variable is to libfabric, its own file may say: `libfabric.conf`, in the folder that was compiled into it, from
1.18 on (src/var.c, `load_conf` and `fi_param_get`).
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.elf import dlsym, undefined_in
from lumiimg.fabric.path import LIBCXI, LIBFABRIC, PROVIDER_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lumiimg.elf import LoadedObject, Process
    from lumiimg.image import RootFileSystem

PROVIDER_PATH = "FI_PROVIDER_PATH"
# Strings stand in front of what makes a library large, its debugging information.
_SCAN_LIMIT_BYTES = 32 * 1024 * 1024
_HELP, _HELP_LIMIT_BYTES = b"\0Search for providers in specific path", 8192
_DEFAULT = b"(default: "
_MAX_NAMES = 256
_FILE = re.compile(rf"\+/.*/{re.escape(PROVIDER_FILE)}", re.DOTALL)
"""An element of FI_PROVIDER_PATH that names the provider itself."""
_CONF = re.compile(rb"\0(/[^\0]{0,4000}/libfabric\.conf)\0")
_CONF_LINE = re.compile(rb"[^\n]{0,2046}\n|[^\n]{1,2047}")
"""What fgets returns by its buffer: a longer line is several."""
_PREFERS = "FI_PREFER_SYSCONFIG"
_TRUE = frozenset({"1", "true", "yes", "on"})
_OF_FILES = b"full path to a provider library"
_RESTRICTED = b"restricted_dl: "
_ENTRY = "fi_prov_ini"
"""What a provider exports (src/fabric.c, `ofi_reg_dl_prov`)."""
HSA = "libhsa-runtime64.so"
"""ROCr, by the name that `--enable-rocr-dlopen` opens: a link that development packages bring (src/hmem_rocr.c)."""
_OF_ROCR = b"\0hsa_amd_pointer_info\0"
"""A function of ROCr by which libfabric knows GPU memory: linked or opened, its name is there (src/hmem_rocr.c)."""

_HIP = re.compile(r"libamdhip64(?:-[0-9a-f]{8})?\.so(?:\.[0-9]+)*")
"""auditwheel puts a part of the digest into the name of what it takes into a wheel."""
_CUDA = re.compile(r"libcuda(?:rt)?\.so[.0-9]*")
_OPENS_CUDA = re.compile(rb"\0(libcuda(?:rt)?\.so[.0-9]*)\0")
_OF_ROCM = re.compile(rb"libamdhip64\.so|libhsa-runtime64\.so|\0hip[A-Z]\w*\0|\0hsa_\w*\0")
"""Libraries that are opened, functions that are called."""


def allows(providers: str, name: str) -> bool:
    """Whether FI_PROVIDER lets a core provider through, by its name in lower case.

    The list goes from comma to comma: blanks count, an empty one names none, and `^` in front excludes all that is in
    it. `cxi;ofi_rxm` names another than cxi (src/fabric.c, `ofi_create_filter` and `ofi_apply_prov_post_filter`, v1.11
    to v2.6).
    """
    names = providers.removeprefix("^").encode("utf-8", "surrogateescape").lower().split(b",")
    return (name.encode() in names) is not providers.startswith("^")


@dataclass(frozen=True, slots=True)
class LibfabricConf:
    """The file that a libfabric reads."""

    path: str = ""
    values: Mapping[str, str] = field(default_factory=dict)

    def decides(self, name: str, variables: Callable[[str], str | None]) -> bool:
        """Whether it, and not a variable, says what a parameter is; `variables` are those of the process."""
        prefers = variables(_PREFERS)
        prefers = self.values.get(_PREFERS, "") if prefers is None else prefers
        return name in self.values and (variables(name) is None or prefers.lower() in _TRUE)


def read_libfabric_conf(process: Process, root: RootFileSystem) -> LibfabricConf:
    """Return what the libfabric of a process reads; of one that is recorded it is not known where."""
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
    """Return the folders that FI_PROVIDER_PATH names: `@` in front of it is about their order, `+` names a file."""
    rest = (text or "").removeprefix("@")
    return tuple(element for element in rest.split(":") if not element.startswith("+")) if rest else ()


def cxi_provider(process: Process, root: RootFileSystem, provider_path: str | None) -> str | None:
    """Return the file that has the cxi provider and loads in this process; None where there is none.

    `provider_path` is FI_PROVIDER_PATH. A provider in a file is opened, as libfabric would: the process has it then.
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
        symbols = undefined_in(process, outcome.objects)
        if not symbols.found or not symbols.is_sure:
            return outcome.root.path
    return None


def _is_provider(process: Process, file: LoadedObject) -> bool:
    """Whether a library has what libfabric asks it for; of a recorded one only the name is known."""
    try:
        return file.is_recorded or dlsym(process, file, _ENTRY) is not None
    except (OSError, BadInputError):
        return False


def _names(process: Process, root: RootFileSystem, libfabric: LoadedObject, provider_path: str) -> Iterator[str]:
    """Yield what libfabric gives to dlopen for the cxi provider. Relative paths are left out: of which folder?

    Files come first (from 1.21 on; before, `+/file` was the name of a folder), then folders in place of its own one.
    """
    own, asks_loader, takes_files = _own(_read(root, process.config.absolute(libfabric.path)) or b"")
    elements = provider_path.removeprefix("@").split(":")
    if takes_files:
        yield from (file[1:] for file in elements if _FILE.fullmatch(file))
    elif any(element.startswith("+") for element in elements):
        own = tuple(elements)
    if asks_loader and not provider_path:
        yield PROVIDER_FILE
    folders = provider_folders(provider_path) or own or (f"{libfabric.path.rpartition('/')[0]}/libfabric",)
    yield from (f"{folder.rstrip('/')}/{PROVIDER_FILE}" for folder in folders if folder.startswith("/"))


def lack_of_rocr(process: Process, root: RootFileSystem) -> str | None:
    """Return why the libfabric of a process does not know memory of AMD's GPUs, or may not; None where it does.

    A ROCr that it opens itself is opened here, too; whether one in a snapshot opens any is not recorded.
    """
    libfabric = process.find(LIBFABRIC)
    if libfabric is None or any(need.startswith(HSA) for need in libfabric.facts.needed):
        return None
    data = _read(root, process.config.absolute(libfabric.path))
    if data is not None and _OF_ROCR not in data:
        return "it was built without ROCr"
    opens = "opens" if data is not None else "does not need ROCr, and may open"
    return None if process.dlopen(HSA, libfabric).ok else f"it {opens} {HSA} by that name, and does not find it"


def _read(root: RootFileSystem, path: str) -> bytes | None:
    """Return a file, as much as has the strings of a library; None of one that is gone, or is only recorded."""
    try:
        with contextlib.closing(root.open(path)) as file:
            return file.read_at(0, min(file.size, _SCAN_LIMIT_BYTES))
    except (OSError, BadInputError):
        return None


def _own(data: bytes) -> tuple[tuple[str, ...], bool, bool]:
    """Return what a libfabric says of itself by its strings; nothing where those are not at hand.

    First its default: PROVDLDIR, which its help for FI_PROVIDER_PATH names. Then whether it gives
    `libcxi-fi.so` to dlopen: its list of providers has cxi, from 1.21 on. Last whether `+` there names a file.
    """
    start = data.find(_HELP)
    text = data[start + 1 : start + _HELP_LIMIT_BYTES].partition(b"\0")[0]
    folders = text.rpartition(_DEFAULT)[2].removesuffix(b")")
    if start < 0 or not folders.startswith(b"/"):
        return (), False, False
    asks_loader = b"\0cxi\0" in data and _RESTRICTED not in data
    return tuple(folders.decode("utf-8", "replace").split(":")), asks_loader, _OF_FILES in text


def is_hip(name: str) -> bool:
    """Whether a name, or a path, is that of a HIP runtime."""
    return _HIP.fullmatch(name.rpartition("/")[2]) is not None


def built_for_cuda(process: Process, root: RootFileSystem, plugin: LoadedObject, rccl: LoadedObject) -> str | None:
    """Return what shows that a plugin is for CUDA alone, where its RCCL is for HIP; None where nothing does.

    aws-ofi-nccl for CUDA opens libcuda.so, or is linked with libcudart (src/nccl_ofi_cuda.cpp; from 1.14 on statically,
    which opens libcuda.so.1): on an AMD GPU its init fails. For HIP it calls that (src/nccl_ofi_rocm.cpp).
    """
    if not any(map(is_hip, rccl.facts.needed)) or any(is_hip(name) for name in plugin.facts.needed):
        return None
    data = _read(root, process.config.absolute(plugin.path)) or b""
    if _OF_ROCM.search(data):
        return None
    if (needed := next(filter(_CUDA.fullmatch, plugin.facts.needed), None)) is not None:
        return f"it needs {needed}"
    opened = _OPENS_CUDA.search(data)
    return f"it opens {os.fsdecode(opened[1])}" if opened else None


def may_be_called(root: RootFileSystem, plugin: str, name: str, *, of_ofi: bool) -> bool:
    """Whether a plugin may have a network of the name in NCCL_NET: it stands in its strings.

    `of_ofi`: the name is one that aws-ofi-nccl ever had. From 1.13 on it asks for NCCL_NET itself, and takes any of
    them (src/nccl_ofi_interface_nvidia.cpp, nvidia_plugin_name_fixup); the linker may then keep `Libfabric` as the end
    of `AWS Libfabric` only. Up to 1.12, as aws-ofi-rccl, it has one name and does not ask.
    """
    data = _read(root, plugin) or b""
    return (of_ofi and b"\0NCCL_NET\0" in data) or b"\0%b\0" % os.fsencode(name).lower() in data.lower()


def users_of_hip(process: Process, runtimes: Sequence[LoadedObject]) -> dict[LoadedObject, frozenset[LoadedObject]]:
    """Return the runtimes that serve each library which needs one."""
    needing = (loaded for loaded in process.objects if any(map(is_hip, loaded.facts.needed)))
    return {loaded: _serving(process, loaded, runtimes) for loaded in needing}


def _serving(process: Process, loaded: LoadedObject, runtimes: Sequence[LoadedObject]) -> frozenset[LoadedObject]:
    """Return the runtimes that serve a library: for each version that it asks for the first that defines it."""
    seen = [each for each in process.scopes.of(loaded) if each in runtimes]
    asked = {need.name for need in loaded.facts.version_needs if is_hip(need.file)}
    firsts = (next((each for each in seen if _defines(each, version)), None) for version in asked)
    return frozenset(filter(None, firsts)) or frozenset(seen[:1])


def _defines(runtime: LoadedObject, version: str) -> bool:
    return not runtime.facts.version_definitions or version in runtime.facts.version_definitions
