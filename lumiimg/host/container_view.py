"""The view of a process in the container: the image with binds over it, its variables, and its processors."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumiimg.elf import LoaderConfig, abi_at, c_library_of
from lumiimg.fabric.path import HOST_LIB_DIR
from lumiimg.host.snapshot import MACHINES
from lumiimg.image import Image, ImageKind, RootFileSystem
from lumiimg.inventory.gpu_fit import MachineGpu

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumiimg.catalog.sites import Site
    from lumiimg.host.snapshot import Snapshot

ENGINE_LIBRARIES = "/.singularity.d/libs"
"""The engine appends this folder to the image's LD_LIBRARY_PATH (99-base.sh)."""
_ENGINE_FOLDER = "/.singularity.d"
TO_ENGINE = ("APPTAINERENV_", "SINGULARITYENV_")
"""Prefixes of variables that the engine sets in the container."""
_MEMORY_TUNABLES = ("glibc.malloc.", "glibc.mem.", "glibc.elision.")
"""Prefixes of tunables that the loader itself does not read."""
_ENGINE_OPTIONS = ("MOUNT", "ENV_FILE", "CONTAINLIBS", "ROCM", "NV", "OVERLAY")
"""Options of engines that the user's variables set (`APPTAINER_MOUNT`; apptainer cmd/internal/cli/action_flags.go), and
that are not modelled."""
_LUMI_NODE = LoaderConfig(hwcaps=("x86-64-v3", "x86-64-v2"))
"""LUMI's EPYC 7A53 and 7763 are AMD Zen 3 processors."""
_STARTUP = ("PATH=", "GLIBC_TUNABLES=", "PYTHON")
_RCCL_PATHS = ("VLLM_NCCL_SO_PATH", "SGLANG_NCCL_SO_PATH")
_FAMILIES = "LD NCCL RCCL FI OFI CXI HSA HIP ROC ROCR ROCM AMD GPU APPTAINER APPTAINERENV SINGULARITY SINGULARITYENV"
READ_VARIABLES = (*_STARTUP, *(f"{name}=" for name in _RCCL_PATHS), *(f"{of}_" for of in _FAMILIES.split()))
"""Prefixes of `NAME=` for variables that affect what a process loads, or what RCCL, its plugin, libfabric and ROCr
do."""


@dataclass(frozen=True, slots=True)
class ContainerView:
    """An image as a process in its container sees it."""

    image: Image
    root: RootFileSystem
    settings: LoaderConfig
    doubts: tuple[str, ...] = ()
    """What is not known about it, one sentence each."""


def variable_of(name: str, image: Image, environment: Mapping[str, str]) -> str | None:
    """Return a variable's value in the container: what the engine is given, else the image's, else the user's own.

    A variable that the image sets to an empty value also removes the user's own (apptainer
    `internal/pkg/util/fs/files/action_script.sh`, restore_env). Of the user's variables, only LD_LIBRARY_PATH does not
    get in (`internal/pkg/util/env/clean.go`).
    """
    for prefix in TO_ENGINE:
        if prefix + name in environment:
            return environment[prefix + name]
    of_user = environment.get(name) if name != "LD_LIBRARY_PATH" else None
    if name not in image.environment:
        return of_user
    return image.environment[name] or (None if of_user is not None else "")


def is_read(name: str) -> bool:
    """Whether a variable affects what a process loads, or what RCCL, its plugin, libfabric and ROCr do."""
    return f"{name}=".startswith(READ_VARIABLES)


def undetermined_variables(image: Image) -> Iterator[str]:
    """Yield a sentence for each relevant variable whose value the image's scripts leave open, with the statement."""
    for name, statement in image.doubts.items():
        if is_read(name):
            yield f"{statement}: only a shell knows the value of {name}"


def as_engine_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that is equivalent to starting the engine with `--env K=V` for each variable."""
    return {prefix + name: value for name, value in variables.items() for prefix in TO_ENGINE}


def engine_env(engine: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a user's environment that an engine, given by name, reads; all of it for an unknown engine.

    Each engine has its own prefix. Apptainer also reads variables with the other's prefix unless its own of that name
    is set; SingularityCE ignores the other's. Tried with Apptainer 1.4.5 and SingularityCE 4.1.3
    (tools/engine_differences.toml).
    """
    if engine == "SingularityCE":
        return {name: value for name, value in environment.items() if not name.startswith("APPTAINER")}
    if engine == "Apptainer":
        owned = {name.removeprefix("APPTAINER") for name in environment if name.startswith("APPTAINER")}
        return {
            name: value
            for name, value in environment.items()
            if not (name.startswith("SINGULARITY") and name.removeprefix("SINGULARITY") in owned)
        }
    return dict(environment)


def loader_on(snapshot: Snapshot | None) -> LoaderConfig:
    """Return what decides where a node's loader searches and what it accepts; without a snapshot, for LUMI's nodes."""
    if snapshot is None:
        return _LUMI_NODE
    return LoaderConfig(hwcaps=snapshot.hwcaps, intel=snapshot.intel)


def view_of_container(
    image: Image, environment: Mapping[str, str], loader: LoaderConfig = _LUMI_NODE, root: RootFileSystem | None = None
) -> ContainerView:
    """Return an image as a process in its container sees it.

    `loader` has the settings that do not come from the image, `root` is its root with the binds over it. The image
    already has the mounts that engines add by themselves (home, /tmp; `engine_rules`).
    """
    preload = variable_of("LD_PRELOAD", image, environment)
    settings = replace(
        loader,
        library_path=_library_path(image, environment),
        preload=(preload,) if preload else (),
        bind_now=bool(variable_of("LD_BIND_NOW", image, environment)),
    )
    return ContainerView(image, root or image.root, settings, tuple(_unmodelled_variables(image, environment)))


def why_not_modelled(root: RootFileSystem) -> str | None:
    """Return why the loader's model does not apply to a root; None where it does."""
    if c_library_of(root).kind == "musl":
        return "this image has musl, whose loader follows different rules from glibc's; only glibc's are modelled"
    return None


def _unmodelled_variables(image: Image, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield variables of the loader whose effect is not modelled."""
    tunables = variable_of("GLIBC_TUNABLES", image, environment) or ""
    if any(each and not each.startswith(_MEMORY_TUNABLES) for each in tunables.split(":")):
        yield f"GLIBC_TUNABLES={tunables} changes the loader in ways that are not modelled"
    if audit := variable_of("LD_AUDIT", image, environment):
        yield f"LD_AUDIT={audit} lets a library change every search of the loader, in ways that are not modelled"
    for name in (f"{engine}_{option}" for engine in ("APPTAINER", "SINGULARITY") for option in _ENGINE_OPTIONS):
        if environment.get(name):
            yield f"{name} changes what the engine puts into the container, in ways that are not modelled"
    if variable_of("LD_TRACE_LOADED_OBJECTS", image, environment) is not None:
        yield "LD_TRACE_LOADED_OBJECTS makes the loader list libraries, and no program starts"
    debug = variable_of("LD_DEBUG", image, environment) or ""
    if "help" in re.split("[ ,:]", debug):  # glibc elf/rtld.c, process_dl_debug
        yield f"LD_DEBUG={debug} makes the loader print its help, and no program starts"


def _library_path(image: Image, environment: Mapping[str, str]) -> str | None:
    """Return LD_LIBRARY_PATH of a process in the container; None where it is not set."""
    path = variable_of("LD_LIBRARY_PATH", image, environment)
    if image.kind is ImageKind.FOLDER and not image.root.exists(_ENGINE_FOLDER):
        return path  # a root file system without an engine's files: nothing is appended
    return f"{path}:{ENGINE_LIBRARIES}" if path else ENGINE_LIBRARIES


def without_host_binds(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without a search path that an earlier manifest, perhaps of another image, has set in it."""
    return {
        name: value
        for name, value in environment.items()
        if not (name.endswith("ENV_LD_LIBRARY_PATH") and value.split(":")[0] == HOST_LIB_DIR)
    }


# -- the processors of the machine: whether they run an image, and which GPU there is --

_UNAME_MACHINES = {"amd64": "x86_64", "arm64": "aarch64", "386": "i686"}
"""Names of architectures in images, and those that `uname -m` prints."""
_ROCM_MACHINE = "x86_64"
"""Architecture of every machine with ROCm: AMD publishes it for no other. ROCm's system requirements, 2026."""


def wrong_processors(image: Image, files: Sequence[str], snapshot: Snapshot | None, site: Site | None) -> str | None:
    """Return why a machine's processors do not run an image, judged by the image's metadata and its programs.

    The machine is the snapshot's node, else the site; without either, one with the architecture of ROCm.
    """
    if snapshot is not None:
        wanted, whose = snapshot.architecture, snapshot.host
    elif site is not None and site.processors is not None:
        wanted, whose = site.processors, site.name
    else:
        wanted, whose = _ROCM_MACHINE, "machines with ROCm"
    image_machine = _UNAME_MACHINES.get(image.description.architecture or "", image.description.architecture)
    if image_machine not in {None, wanted}:
        return f"the image is marked as {image_machine}, but {whose} has {wanted}"
    root = image.root
    for path in (*files, *filter(None, [c_library_of(root).loader])):
        if (abi := abi_at(root, path)) is not None:
            machine = MACHINES.get(abi.machine, f"another machine (e_machine {abi.machine})")
            if abi.bits == 64 and machine == wanted:
                return None
            bits = "" if abi.bits == 64 else f" with {abi.bits} bits"
            return f"{path} is for {machine}{bits}, and {whose} has {wanted}"
    return None


def gpu_of_machine(snapshot: Snapshot | None, site: Site | None) -> MachineGpu | None:
    """Return the GPU of a machine: that of the node in the snapshot, else the site's; None where no AMD GPU is known.

    What was seen on a node counts more than what is assumed about its site.
    """
    if snapshot is not None and snapshot.gpu is not None:
        return MachineGpu(snapshot.gpu, snapshot.host)
    return MachineGpu(site.arch, site.name) if site is not None and site.arch is not None else None
