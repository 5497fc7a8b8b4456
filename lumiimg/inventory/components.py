"""The software already in an image, read from its files, so that it is neither installed again nor shadowed."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from lumiimg.catalog.needs import NOT_PYTHON, is_version
from lumiimg.core.access import read_or_empty
from lumiimg.core.errors import BadInputError
from lumiimg.elf import exported_at, facts_at, glibc_version, wanted_at
from lumiimg.fabric.path import (
    LIBCXI,
    LIBFABRIC,
    NET_SYMBOL,
    PLUGIN_FILES,
    RCCL_OR_PLUGIN,
    Part,
    PluginVariableRule,
    names_by_variable,
    net_api,
    part_of,
)
from lumiimg.fabric.rccl import PLUGIN_VARIABLE, Rccl, read_conf, read_rccl
from lumiimg.image import FileKind, ImageError
from lumiimg.inventory.gpu_code import GpuCode, may_have_code, read_gpu_code
from lumiimg.inventory.python import Python, python_of, version_of_program
from lumiimg.inventory.system import ROCM_LIBRARY, os_release, rocm_in_wheels, rocm_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from lumiimg.image import Image, RootFileSystem

_LIBMPI = "libmpi.so."
_FABRIC_OR_MPI = rf"{re.escape(LIBFABRIC)}|{re.escape(LIBCXI)}|{re.escape(_LIBMPI)}(?:12|40)"
_WANTED = re.compile(rf"{RCCL_OR_PLUGIN.pattern}|{ROCM_LIBRARY.pattern}|{_FABRIC_OR_MPI}|hipcc|python3")
_MAX_RCCLS, _MAX_MODULES = 200, 2000
_MAX_BYTES, _ENTRY_BYTES = 256 << 20, 64
"""Limit on all paths recorded for an image, and Python's overhead of each; one with PyTorch and vLLM has 10 MiB."""
_KERNEL_FOLDERS = ("/proc/", "/sys/")
_SITE = re.compile(r"/.*/python3(?:\.\d{1,2})?/(?:site|dist)-packages")
_STEMS = tuple(file.removesuffix(".so") for file in PLUGIN_FILES)
_NAME_OF_SYSTEM = re.compile(r"[a-z0-9._-]+")
_LOCAL_ROCM = re.compile(r"rocm(\d{1,2}\.\d{1,2}(?:\.\d{1,2})?)")


@dataclass(slots=True)
class _RelevantPaths:
    """The relevant paths of an image, in the order of one walk."""

    files: list[str] = field(default_factory=list)
    """Files that are evidence of a component."""
    metadata: list[str] = field(default_factory=list)
    """Metadata of Python distributions, in any folder."""
    code: list[str] = field(default_factory=list)
    """Files that may have GPU code."""
    links: list[str] = field(default_factory=list)
    has_conda: bool = False
    size_bytes: int = 0

    def look_at(self, path: str, kind: FileKind) -> None:
        """Record a path if it is relevant. Raises ImageError for more than any real image has."""
        name = path.rpartition("/")[2]
        if kind is not FileKind.DIRECTORY and _WANTED.fullmatch(name):
            self._note(self.files, path)
        if kind is FileKind.SYMLINK:
            self._note(self.links, path)
        elif kind is FileKind.FILE and may_have_code(path):
            self._note(self.code, path)
        if name.endswith(METADATA) and len(self.metadata) < MAX_DISTRIBUTIONS:
            self._note(self.metadata, path)
        self.has_conda = self.has_conda or name == "conda-meta"

    def _note(self, paths: list[str], path: str) -> None:
        paths.append(path)
        self.size_bytes += len(path) + _ENTRY_BYTES
        if self.size_bytes > _MAX_BYTES:
            raise ImageError(f"the paths of its libraries, programs and links exceed {_MAX_BYTES >> 20} MiB")


@dataclass(frozen=True, eq=False)
class Inventory:
    """The software of an image. Each part is read once, when it is first requested.

    Every part raises ImageError if the image is too damaged to be traversed.
    """

    image: Image
    _rccls: dict[str, Rccl] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def has(self) -> Mapping[str, str]:
        """Components with their versions, named as in the catalogue's bases: `os`, `glibc`, `rocm`, `torch`."""
        return {name: version for name, version in self._components.items() if version is not None}

    @property
    def provides(self) -> tuple[str, ...]:
        """Components without a known version, sorted."""
        return tuple(sorted(self._components.keys() - self.has.keys()))

    @cached_property
    def os_release(self) -> Mapping[str, str]:
        """Variables in os-release(5) of the image."""
        return os_release(self.image.root)

    @cached_property
    def glibc(self) -> str | None:
        """Version of its glibc, such as `2.35`; None if it has none."""
        return glibc_version(self.image.root)

    @cached_property
    def distributions(self) -> Mapping[str, Mapping[str, Distribution]]:
        """Python distributions by name for each folder that has some, without those bundled inside others.

        At most `MAX_DISTRIBUTIONS`.
        """
        sites: dict[str, dict[str, Distribution]] = {}
        latest = None
        for distribution in filter(None, map(distribution_of, self._paths.metadata)):
            site = distribution.site
            is_inside = latest is not None and site.startswith(f"{latest}/")  # a folder precedes its content
            if site in sites or _SITE.fullmatch(site) or not is_inside:
                sites.setdefault(site, {}).setdefault(distribution.name, distribution)
                latest = site
        return sites

    def versions_in(self, site: str) -> dict[str, str]:
        """Return the version of each distribution in one folder, by name."""
        found = self.distributions.get(self.image.root.resolve_where_possible(site), {})
        return {name: distribution.version for name, distribution in found.items()}

    def modules_in(self, site: str) -> list[str]:
        """Return the compiled modules in a folder, without torch's and NumPy's; if there are too many, the first."""
        inside = f"{self.image.root.resolve_where_possible(site)}/"
        of_others = (path for path in self._paths.code if path.startswith(inside) and path.endswith(".so"))
        own = ("torch/", "numpy/", "numpy.libs/")
        return list(islice((path for path in of_others if not path.startswith(own, len(inside))), _MAX_MODULES))

    @property
    def has_all_distributions(self) -> bool:
        """Whether no distribution was left out because of the limit."""
        return len(self._paths.metadata) < MAX_DISTRIBUTIONS

    @property
    def has_conda(self) -> bool:
        """Whether conda has installed packages; of those, only Python distributions are read."""
        return self._paths.has_conda

    @cached_property
    def site_packages(self) -> str | None:
        """Main folder of distributions: that with torch, else that of a virtual environment, else the system's."""
        sites = [site for site in self.distributions if _SITE.fullmatch(site)]
        has = self.distributions
        order = sorted(sites, key=lambda site: ("torch" not in has[site], site.startswith("/usr/"), site))
        return order[0] if order else None

    @cached_property
    def python(self) -> Python | None:
        """The Python that runs programs of its frameworks; None without one."""
        return python_of(self.image, self.site_packages, self.has)

    @cached_property
    def rccl(self) -> Rccl:
        """Main RCCL: torch's own, else ROCm's, else any other, of those that state a version; empty without one."""
        files = [path for path in self._paths.files if part_of(path) is Part.RCCL]
        for path in sorted(files, key=lambda path: ("/torch/lib/" not in path, "/opt/rocm" not in path, path)):
            with contextlib.suppress(OSError, ImageError):
                if (rccl := self.rccl_at(path)).version is not None:
                    return rccl
        return Rccl()

    def rccl_at(self, path: str) -> Rccl:
        """Return the properties of an RCCL in the image. Raises OSError or ImageError if it cannot be read."""
        real = self.image.root.resolve(path)
        if real not in self._rccls:
            with contextlib.closing(self.image.root.open(real)) as file:
                self._rccls[real] = read_rccl(file)
        return self._rccls[real]

    @property
    def rccl_files(self) -> list[str]:
        """Paths with the name of an RCCL or a net plugin, sorted; if there are too many, the first."""
        return sorted(self._files_named(RCCL_OR_PLUGIN))[:_MAX_RCCLS]

    def libraries_called(self, names: Collection[str]) -> Iterator[str]:
        """Yield the paths of libraries and links that have one of these names."""
        return (path for path in (*self._paths.code, *self._paths.links) if path.rpartition("/")[2] in names)

    @cached_property
    def gpu_code(self) -> GpuCode:
        """GPU code in the image's files."""
        return read_gpu_code(self.image.root, self._paths.code, self._paths.links)

    def _files_named(self, name: re.Pattern[str]) -> list[str]:
        return [path for path in self._paths.files if name.fullmatch(path.rpartition("/")[2])]

    @cached_property
    def _paths(self) -> _RelevantPaths:
        found = _RelevantPaths()
        for path, kind in self.image.root.walk():
            if not path.startswith(_KERNEL_FOLDERS):
                found.look_at(path, kind)
        return found

    @cached_property
    def _components(self) -> dict[str, str | None]:
        """Components with their versions; None if a version is not known."""
        found: dict[str, str | None] = {}
        for part in (self._system_parts(), self._rocm_parts(), self._fabric_parts(), self._python_parts()):
            found |= {name: version for name, version in part if version is not None or name not in found}
        return found

    def _system_parts(self) -> Iterator[tuple[str, str | None]]:
        name = self.os_release.get("ID", "")
        if _NAME_OF_SYSTEM.fullmatch(name) and name not in NOT_PYTHON:
            yield name, None
            yield "os", f"{name.capitalize()} {self.os_release.get('VERSION_ID', '')}".strip()
        if self.glibc is not None:
            yield "glibc", self.glibc

    def _python_parts(self) -> Iterator[tuple[str, str | None]]:
        if self.site_packages is not None:
            for name, distribution in self.distributions[self.site_packages].items():
                if name not in NOT_PYTHON and is_version(distribution.version):
                    yield name, distribution.version
        if (version := self._version_of_python()) is not None:
            yield from (("python3", None), ("python", version))

    def _version_of_python(self) -> str | None:
        if self.site_packages is not None and (named := re.search(r"/python(3\.\d{1,2})/", self.site_packages)):
            return named[1]
        programs = [path for path in self._paths.files if path.endswith("/bin/python3")]
        programs.sort(key=lambda path: path != "/usr/bin/python3")
        return next(filter(None, (version_of_program(self.image.root, path) for path in programs)), None)

    def _rocm_parts(self) -> Iterator[tuple[str, str | None]]:
        root = self.image.root
        libraries = self._files_named(ROCM_LIBRARY)
        has_rocm, version = rocm_of(root, libraries, self.rccl_at)
        if has_rocm:
            yield from (("rocm", version), ("hip", None))
        if any(path.endswith("/hipcc") for path in self._paths.files):
            yield "rocm-devel", None
        torch = self.distributions[self.site_packages].get("torch") if self.site_packages else None
        if torch is not None and (local := _LOCAL_ROCM.search(torch.version)):
            yield "torch-rocm", local[1]
            return
        is_in_wheels, version = rocm_in_wheels(libraries, self.rccl_at)
        if is_in_wheels:
            yield "wheel-rocm", version

    def _fabric_parts(self) -> Iterator[tuple[str, str | None]]:
        if self.rccl.version is not None:
            yield "rccl", self.rccl.version
        if versions := self._net_api():
            yield from (("net-plugin", None), ("net-api", str(versions[0])), ("net-api-oldest", str(versions[-1])))
        for component, name in (("libfabric", LIBFABRIC), ("libcxi", LIBCXI), ("mpi", _LIBMPI)):
            paths = (path for path in self._paths.files if path.rpartition("/")[2].startswith(name))
            names = {path.rpartition("/")[2] for path in paths if _is_elf(self.image.root, path)}
            if names:
                yield component, None
                if component == "mpi":
                    yield "mpi-abi", min(names).removeprefix(name)

    def _net_api(self) -> tuple[int, ...]:
        """Return the net API versions of the image's plugin, which is a file that its RCCL would open.

        RCCL ignores a plugin with any other name.
        """
        root, rccl, named = self.image.root, self.rccl, self._plugin_variable()
        if rccl.generation is None and named:  # a layer provides RCCL, or its version is unknown
            names = names_by_variable(named, _STEMS, PluginVariableRule.LIST)
        else:
            names = () if rccl.opens_none(named) else rccl.names(named) or PLUGIN_FILES
        unusual = {name for name in names if "/" not in name and part_of(name) is not Part.PLUGIN}
        files = [*self._paths.files, *(root.find(unusual) if unusual else ())]
        for name in names:
            for path in [name] if name.startswith("/") else [path for path in files if path.rpartition("/")[2] == name]:
                if versions := net_api(exported_at(root, path, NET_SYMBOL)):
                    return versions
        return ()

    def _plugin_variable(self) -> str | None:
        """Return NCCL_NET_PLUGIN as set by the image alone: in its environment, else in RCCL's configuration file."""
        if PLUGIN_VARIABLE in self.image.environment:
            return self.image.environment[PLUGIN_VARIABLE]
        try:
            return read_conf(self.image.root).get(PLUGIN_VARIABLE)
        except (OSError, BadInputError):
            return None


def _is_elf(root: RootFileSystem, path: str) -> bool:
    with contextlib.suppress(OSError, ImageError), contextlib.closing(root.open(path)) as file:
        return file.read_at(0, 4) == b"\x7fELF"
    return False


# -- Python distributions --
#
# A distribution is identified by the name of its metadata: `NAME-VERSION.dist-info`, a folder (PEP 376, PEP 427), or
# `NAME-VERSION-pyX.Y.egg-info`, a folder or a file, where the part after the version is optional (setuptools; Debian).

MAX_DISTRIBUTIONS = 20_000
"""Maximum number for one image, or for the folders of one call; more are left out."""
METADATA = (".dist-info", ".egg-info")
"""Endings of the names of distribution metadata."""
_NAME, _VERSION = r"[A-Za-z0-9._]{1,128}", r"[A-Za-z0-9.+!_]{1,64}"
_NAMED = re.compile(rf"({_NAME})-({_VERSION})(?:-py3[\w.-]{{0,64}})?\.(?:dist|egg)-info", re.ASCII)
_MODULE = re.compile(r".+\.(?:cpython-3[0-9]+[^/]*|abi3)\.so")
_OLD_NUMPY, _NEW_NUMPY = b"numpy.core._multiarray_umath", b"numpy._core._multiarray_umath"
_MAX_MODULE_BYTES, _MAX_READ_BYTES = 4 << 20, 64 << 20


@dataclass(frozen=True, slots=True)
class Distribution:
    """An installed Python distribution."""

    name: str
    """Normalized name (PEP 503): `flash-attn`."""
    version: str
    """Version in the name of its metadata: `2.7.1+rocm6.2`."""
    metadata: str
    """Path of its metadata in the image."""

    @property
    def site(self) -> str:
        """Folder that contains it."""
        return self.metadata.rpartition("/")[0]


def distribution_of(path: str) -> Distribution | None:
    """Return the distribution whose metadata is at a path; None for any other path."""
    found = _NAMED.fullmatch(path.rpartition("/")[2])
    return Distribution(canonicalize_name(found[1]), found[2], path) if found else None


def versions_in(root: RootFileSystem, folders: Iterable[str]) -> dict[str, str]:
    """Return the versions of the distributions in some folders, by name; the first folder wins, as in Python."""
    found: dict[str, str] = {}
    for folder in folders:
        with contextlib.suppress(OSError, ImageError):
            for distribution in filter(None, (distribution_of(f"{folder}/{n}") for n, _ in root.list_dir(folder))):
                if len(found) < MAX_DISTRIBUTIONS:
                    found.setdefault(distribution.name, distribution.version)
    return found


def broken_modules(root: RootFileSystem, c10: str, modules: Sequence[str], prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return the modules that need symbols which the image's libc10 lacks, each with the first such symbol."""
    offered = exported_at(root, c10)
    found: dict[str, str] = {}
    for path in modules if offered else ():
        facts = facts_at(root, path)
        if facts is not None and "libc10.so" in facts.needed:
            lacking = [name for name in wanted_at(root, path) - offered if name.startswith(prefixes)]
            found |= {path: min(lacking)} if lacking else {}
    return found


def numpy_1_modules(root: RootFileSystem, modules: Sequence[str]) -> Iterator[str]:
    """Yield the modules compiled with NumPy 1; large modules are not read."""
    left = _MAX_READ_BYTES
    for path in filter(_MODULE.fullmatch, modules):
        data = read_or_empty(root, path, min(_MAX_MODULE_BYTES, left))
        left -= len(data)
        if _OLD_NUMPY in data and _NEW_NUMPY not in data:
            yield path
