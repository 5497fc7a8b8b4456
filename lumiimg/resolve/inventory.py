"""What an image has already, read from its files: what somebody else put in is not put in again, nor shadowed."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.catalog.needs import is_version
from lumiimg.elf.system import exported_at, glibc_version
from lumiimg.fabric.names import (
    LIBCXI,
    LIBFABRIC,
    NET_SYMBOL,
    PLUGIN_FILES,
    RCCL_OR_PLUGIN,
    Naming,
    names_by_variable,
    net_api,
    part_of,
)
from lumiimg.fabric.path import Part
from lumiimg.fabric.rccl import PLUGIN_VARIABLE, Rccl, read_rccl
from lumiimg.host.python_modules import distribution_of
from lumiimg.host.rccl_variables import read_variables
from lumiimg.image.tree import ImageError
from lumiimg.resolve.rocm_of_image import LIBRARY, rocm_in_wheels, rocm_of
from lumiimg.resolve.stack import OfferedComponent, Stack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.image import Image, RootFileSystem

_WANTED = re.compile(
    "|".join(
        (
            RCCL_OR_PLUGIN.pattern,
            LIBRARY.pattern,
            re.escape(LIBFABRIC),
            re.escape(LIBCXI),
            r"libmpi\.so\.(?:12|40)|METADATA|hipcc|python3",
        )
    )
)
_SITE = re.compile(r"/.*/python3(?:\.\d{1,2})?/(?:site|dist)-packages")
NOT_PYTHON = frozenset(
    ("os", "glibc", "python", "rocm", "rccl", "hip", "torch-rocm", "wheel-rocm", "mpi", "slingshot")
) | frozenset(("libfabric", "libcxi", "net-api", "net-api-oldest", "net-plugin", "mpi-abi"))
"""Components that are neither Python distributions nor systems, whatever one is called."""
_STEMS = tuple(file.removesuffix(".so") for file in PLUGIN_FILES)
_SMALL_BYTES = 64 * 1024
_LOCAL_ROCM = re.compile(r"rocm(\d{1,2}\.\d{1,2}(?:\.\d{1,2})?)")


@dataclass(frozen=True, slots=True)
class Inventory:
    """Components with their versions, in the words of the catalogue's bases."""

    has: Mapping[str, str]
    provides: tuple[str, ...]
    site_packages: str | None
    """The folder of Python distributions that counts: with torch, else of a virtual environment, else the system's."""

    @property
    def stack(self) -> Stack:
        """What the image offers, for rules that ask a stack."""
        return self.stack_with({})

    def stack_with(self, packages: Mapping[str, str]) -> Stack:
        """Return the same with Python packages that are laid over the image, where it has none of these names."""
        own = {name: version for name, version in packages.items() if name not in NOT_PYTHON}
        versions = own | dict.fromkeys(self.provides) | dict(self.has)
        return Stack({name: OfferedComponent(version, "the image") for name, version in versions.items()})


def read_contents(image: Image) -> Inventory:
    """Return what an image has of that which layers need or bring. Raises ImageError for an image that is damaged."""
    root = image.root
    has: dict[str, str] = {}
    provides: set[str] = set()
    release = _os_release(root)
    if re.fullmatch(r"[a-z0-9._-]+", release.get("ID", "")) and release["ID"] not in NOT_PYTHON:
        provides.add(release["ID"])
        has["os"] = f"{release['ID'].capitalize()} {release.get('VERSION_ID', '')}".strip()
    if (glibc := glibc_version(root)) is not None:
        has["glibc"] = glibc
    found = [path for path in root.find(_WANTED) if not path.startswith(("/proc/", "/sys/"))]
    sites = _sites(found)
    site = _site_that_counts(sites)
    if site is not None:
        dists = sites[site]
        has |= {name: dists[name] for name in dists if name not in NOT_PYTHON and is_version(dists[name])}
    python = _python_of(root, site, found)
    if python is not None:
        provides.add("python3")
        has["python"] = python
    of_rocm = [path for path in found if LIBRARY.fullmatch(path.rpartition("/")[2])]
    has_rocm, version = rocm_of(root, of_rocm)
    if has_rocm:
        provides |= {"rocm", "hip"}
    if version is not None:
        has["rocm"] = version
    if any(path.endswith("/hipcc") for path in found):
        provides.add("rocm-devel")
    if "torch" in has and (local := _LOCAL_ROCM.search(has["torch"])):
        has["torch-rocm"] = local[1]
    else:
        is_in_wheels, version = rocm_in_wheels(root, of_rocm)
        provides |= {"wheel-rocm"} if is_in_wheels else set()
        has |= {"wheel-rocm": version} if version else {}
    rccl = _rccl(root, found)
    if rccl.version is not None:
        has["rccl"] = rccl.version
    has |= _plugin(image, rccl, found)
    for component, name in (("libfabric", LIBFABRIC), ("libcxi", LIBCXI), ("mpi", "libmpi.so.")):
        if names := {
            last for path in found if (last := path.rpartition("/")[2]).startswith(name) and _is_elf(root, path)
        }:
            provides.add(component)
            if component == "mpi":
                has["mpi-abi"] = min(names).removeprefix(name)
    if "net-api" in has:
        provides.add("net-plugin")
    return Inventory(has, tuple(sorted(provides - has.keys())), site)


def _sites(found: list[str]) -> dict[str, dict[str, str]]:
    """Return the Python distributions by the folder that they are in."""
    sites: dict[str, dict[str, str]] = {}
    for path in found:
        folder, _, last = path.rpartition("/")
        site, _, name = folder.rpartition("/")
        if last == "METADATA" and _SITE.fullmatch(site) and (distribution := distribution_of(name)):
            sites.setdefault(site, {}).update([distribution])
    return sites


def _site_that_counts(sites: Mapping[str, Mapping[str, str]]) -> str | None:
    """Return the folder with torch; else that of a virtual environment; else the first."""
    order = sorted(sites, key=lambda site: ("torch" not in sites[site], site.startswith("/usr/"), site))
    return order[0] if order else None


def _python_of(root: RootFileSystem, site: str | None, found: list[str]) -> str | None:
    if site is not None and (named := re.search(r"/python(3\.\d{1,2})/", site)):
        return named[1]
    for path in sorted(
        (path for path in found if path.endswith("/bin/python3")), key=lambda p: p != "/usr/bin/python3"
    ):
        try:
            real = root.resolve(path)
        except (OSError, ImageError):
            continue
        if named := re.fullmatch(r".*/python(3\.\d{1,2})", real):
            return named[1]
    return None


def _rccl(root: RootFileSystem, found: list[str]) -> Rccl:
    """Return the RCCL that counts: torch's own, else ROCm's, else any that says its version; empty without one."""
    files = [path for path in found if part_of(path) is Part.RCCL]
    for path in sorted(files, key=lambda path: ("/torch/lib/" not in path, "/opt/rocm" not in path, path)):
        try:
            file = root.open(path)
        except (OSError, ImageError):
            continue
        with contextlib.closing(file):
            rccl = read_rccl(file)
        if rccl.version is not None:
            return rccl
    return Rccl()


def _plugin(image: Image, rccl: Rccl, found: list[str]) -> dict[str, str]:
    """Return the versions of the net API that the image's plugin offers: a file that its RCCL would ask for.

    One of another name is not a plugin to RCCL, which goes past it.
    """
    named = read_variables(image, {}).get(PLUGIN_VARIABLE)
    if rccl.generation is None and named:  # a layer brings an RCCL, or it is one that nobody knows
        names = names_by_variable(named, _STEMS, Naming.LIST)
    else:
        names = () if rccl.opens_none(named) else rccl.names(named) or PLUGIN_FILES
    unusual = {name for name in names if "/" not in name and part_of(name) is not Part.PLUGIN}
    if unusual:
        found = [*found, *image.root.find(unusual)]
    for name in names:
        for path in [name] if name.startswith("/") else [path for path in found if path.rpartition("/")[2] == name]:
            if versions := net_api(exported_at(image.root, path, NET_SYMBOL)):
                return {"net-api": str(versions[0]), "net-api-oldest": str(versions[-1])}
    return {}


def _is_elf(root: RootFileSystem, path: str) -> bool:
    try:
        with contextlib.closing(root.open(path)) as file:
            return file.read_at(0, 4) == b"\x7fELF"
    except (OSError, ImageError):
        return False


def _os_release(root: RootFileSystem) -> dict[str, str]:
    text = _text(root, "/etc/os-release") or _text(root, "/usr/lib/os-release")
    pairs = (line.partition("=") for line in text.splitlines())
    return {key: value.strip().strip("\"'")[:64] for key, equals, value in pairs if equals}


def _text(root: RootFileSystem, path: str) -> str:
    """Return a small file; nothing where it cannot be read."""
    try:
        return root.read_bytes(path, _SMALL_BYTES).decode("utf-8", "replace")
    except (OSError, ImageError):
        return ""
