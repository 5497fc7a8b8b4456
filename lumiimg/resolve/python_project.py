"""All Python distributions of an image, resolved together before anything is built, for the Python of the image.

uv resolves them, and reports conflicts in its own words. To uv, an image is a project `this-image` that requires its
layers: each is an empty wheel, `layer-vllm`, with the layer's requirements. Other packages of the image (a torch of the
base) are empty wheels too: each is available in that one version, and no index is asked for it. The user's requirements
are those of the project itself.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import tomli_w
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from lumiimg.catalog.layers import SHA256
from lumiimg.catalog.needs import is_version, version_of
from lumiimg.core.errors import FailedError
from lumiimg.engine.workspace import scratch_folder
from lumiimg.fetch.http import Http, display_url, require_tls_or_digest
from lumiimg.fetch.mirrors import general_index, validated_url
from lumiimg.resolve.lock import LockedSource, locked_wheel
from lumiimg.resolve.python_target import ROCM_TRITONS, TRITON, PythonTarget, is_of_cuda
from lumiimg.resolve.stack import OWN_PACKAGES
from lumiimg.resolve.uv import LockedPackage, NoSolutionError, NoTimesError, compile_versions, compile_wheels

if TYPE_CHECKING:
    import datetime as dt
    from pathlib import Path

    from lumiimg.fetch.store import Sources
    from lumiimg.resolve.uv import ResolvedVersions

THIS_IMAGE = "this-image"
"""uv's name for the project, which requires the layers and the user's packages."""
_HERE = "here"
"""The index of packages that no server is asked for: a folder."""
_SHOWN = 8
_UV = "uv"
"""Folder of uv in the cache."""
_PAGE_LIMIT_BYTES = 64 * 1024 * 1024
_NEVER = "sys_platform == 'never'"
# It answers 403 for a project that it does not have. Source: uv, IndexStatusCodeStrategy::from_index_url;
# pytorch/pytorch#145983. Anywhere else 403 means "access denied", after which the next index must not be tried.
_FORBIDDEN_MEANS_ABSENT = ("pytorch.org",)


@dataclass(frozen=True, slots=True)
class LayerRequirements:
    """The Python requirements of one layer."""

    name: str
    version: str
    pins: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    """Indexes for the pins, each from the first that has it; mirrors are already in place."""
    beside: tuple[str, ...] = ()
    """Further projects from these indexes, if one has them, in the version that the pins require."""
    requires: tuple[str, ...] = ()
    """Its other requirements, from the general index."""
    without: tuple[str, ...] = ()
    """Projects that are left out, whatever requires them; normalized names (PEP 503)."""
    has: Mapping[str, str] = field(default_factory=dict)
    """Versions of packages that it provides without wheels, or that the base has."""
    date: dt.date | None = None
    """Day as of which its requirements are resolved, if that is compatible with the rest; None for the common day."""

    @property
    def project(self) -> str:
        """Its name in uv."""
        return f"layer-{canonicalize_name(self.name)}"

    @property
    def as_installed(self) -> LayerRequirements:
        """The layer as installed in the image: no index is asked for its packages."""
        pinned = {name: version_of_pin(pin) for name, pin in pins_by_project(self.pins).items()}
        return replace(self, pins=(), beside=(), requires=(), has={**self.has, **pinned})


@dataclass(frozen=True, slots=True)
class ResolvedWheels:
    """The wheels for an image."""

    by_layer: Mapping[str, tuple[LockedSource, ...]]
    """Wheels by name of the layer: its own, and those that it is the first to require. Wheels that only the user's
    requirements need are under OWN_PACKAGES. A wheel has no digest yet if its index gives none."""
    requirers: Mapping[str, frozenset[str]]
    """Requirers of each project."""


def resolve_wheels(
    layers: Sequence[LayerRequirements],
    target: PythonTarget,
    sources: Sources,
    *,
    until: dt.date | None,
    preferred: Mapping[str, str],
    requirements: Sequence[str] = (),
) -> ResolvedWheels:
    """Return the wheels for layers, and for a user's `requirements` on top of them.

    Apart from pins, nothing uploaded after the day `until` is used; `preferred` versions are used where they still
    fit. Layers of an earlier day are resolved first, as of that day, so that a new layer changes nothing in an old
    one.

    Raises FailedError for wheels that are not available, or would add CUDA; NoSolutionError for a conflict.
    """
    general, cache = general_index(sources.mirrors), sources.cache / _UV
    require_tls_or_digest(general)
    indexes = {
        name: _index_of(name, layer.indexes or (general,), sources.web)
        for layer in reversed(layers)  # if several layers pin a project, the first counts
        for name in pins_by_project(layer.pins)
    }
    for layer in layers:
        for name in layer.beside:
            if name not in indexes and (index := _index_with(name, layer.indexes, sources.web)):
                indexes[name] = index
    project = _Project(layers, indexes, requirements, target, cache, general, offline=sources.web.offline)
    for day in sorted({layer.date for layer in layers if layer.date and until and layer.date < until}):
        of_day = [layer if layer.date and layer.date <= day else layer.as_installed for layer in layers]
        then = replace(project, layers=of_day, requirements=())
        with scratch_folder(sources.cache) as folder, suppress(NoTimesError, NoSolutionError):
            preferred = {**preferred, **then.resolve(folder, day, preferred).versions}
    with scratch_folder(sources.cache) as folder:
        try:
            try:
                found = project.resolve(folder, until, preferred)
            except NoTimesError:
                sources.on_line(f"the index gives no upload times, so the date {until} has no effect")
                until = None
                found = project.resolve(folder, until, preferred)
        except NoSolutionError as error:
            if other := _pin_conflict(layers, error.what):
                raise FailedError(other, hint="use another release, and report this: the catalogue is wrong") from error
            if until and any("exclude-newer" in line for line in error.more):  # uv on files left out by a date
                error.hint = f"uploads after {until} are excluded: use another date with --exclude-newer"
            elif not requirements:
                pins = [f"the layer {layer.name} pins {pin}" for layer in layers for pin in layer.pins]
                named = [pin for pin in pins if is_named(pin.split()[-1].split("=")[0], error.what)]
                error.hint = "; ".join([*named[:_SHOWN], "ask for another release"])
            raise
        packages = compile_wheels(folder, target, cache, found.versions)
    if not requirements:
        refuse_cuda(found.requirers)
    for line in found.warnings:
        sources.on_line(line)
    wheels = [_wheel(one, target) for one in packages if one.name not in project.here]
    if (plain := [one.location for one in wheels if urlsplit(one.location).scheme == "http"]) and not project.is_plain:
        raise FailedError(f"its index uses TLS, but has a link without TLS, which is not followed: {plain[0][:200]}")
    return ResolvedWheels(_by_layer(layers, wheels, found.requirers), found.requirers)


def _pin_conflict(layers: Sequence[LayerRequirements], sentence: str) -> str | None:
    """Return a conflict within a set of wheels: uv reports that they require another version than the pinned one."""
    for layer in layers:
        for name, pin in pins_by_project(layer.pins).items() if layer.beside else ():
            found = re.search(rf"depends? on {re.escape(name)}==([\w.+!-]+)", sentence.replace(pin, ""))
            if found:
                return f"the wheels of {layer.name} {layer.version} require {name}=={found[1]}, but its row has {pin}"
    return None


def with_digests(wheels: Sequence[LockedSource], sources: Sources) -> tuple[LockedSource, ...]:
    """Return wheels as a lock records them, with addresses that are valid without a mirror. A digest that the index
    does not give is that of the first download.
    """
    made = sources.store.digests([wheel.location for wheel in wheels if wheel.sha256 is None], sources.on_line)
    return tuple(
        replace(
            wheel,
            sha256=wheel.sha256 or made[wheel.location],
            location=sources.mirrors.restore(wheel.location),
            note="" if wheel.sha256 else "its index gives no digest; it was computed at the first download",
        )
        for wheel in wheels
    )


def refuse_cuda(requirers: Mapping[str, frozenset[str]]) -> None:
    """Raise FailedError if a CUDA project is required."""
    for name in sorted(requirers):
        if is_of_cuda(name):
            by = ", ".join(sorted(requirers[name]))
            raise FailedError(
                f"the CUDA package {name} is required by {by[:200]}: a wheel that is not for ROCm was selected",
                hint="use the layer's releases unchanged, or report the layer",
            )


def all_requirers(project: str, requirers: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the direct and indirect requirers of a project, nearest first."""
    found = {project: None}
    waiting = [project]
    for one in waiting:
        new = sorted(requirers.get(one, frozenset()) - found.keys())
        found |= dict.fromkeys(new)
        waiting += new
    return waiting[1:]


def pins_by_project(pins: Sequence[str]) -> dict[str, str]:
    """Return requirements, such as the pin `torch==2.9.1`, by normalized project name (PEP 503)."""
    return {str(canonicalize_name(Requirement(pin).name)): pin for pin in pins}


def version_of_pin(pin: str) -> str:
    """Return the version of a pin like `torch==2.9.1`."""
    (specifier,) = Requirement(pin).specifier
    return specifier.version


def is_named(project: str, sentence: str) -> bool:
    """Return whether a sentence of uv's output names a project."""
    return re.search(rf"(?<![\w.-]){re.escape(project)}(?![\w.-])", sentence) is not None


def _index_of(name: str, indexes: Sequence[str], web: Http) -> str:
    """Return the first index that has the project. Raises FailedError as `_index_with` does, and if none has it."""
    if index := _index_with(name, indexes, web):
        return index
    raise FailedError(f"no package index has {name}: {', '.join(map(display_url, indexes))[:400]}")


def _index_with(name: str, indexes: Sequence[str], web: Http) -> str | None:
    """Return the first index that has the project. An index that does not answer is an error, and is never skipped.

    So versions from two indexes are never mixed: a CUDA torch from the general index cannot win over one for ROCm.
    """
    for index in indexes:
        url = f"{validated_url(index, 'the package index').rstrip('/')}/{name}/"
        host = urlsplit(url).hostname or ""
        forbidden = any(host == known or host.endswith(f".{known}") for known in _FORBIDDEN_MEANS_ABSENT)
        absent = frozenset({404, 403} if forbidden else {404})
        headers = {"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.1"}
        if web.get(url, limit_bytes=_PAGE_LIMIT_BYTES, headers=headers, allow=absent).status not in absent:
            return index
    return None


@dataclass(frozen=True)
class _Project:
    """The input for uv."""

    layers: Sequence[LayerRequirements]
    indexes: Mapping[str, str]
    """Index of each project that is pinned, or is beside a pinned one."""
    requirements: Sequence[str]
    """The user's own."""
    target: PythonTarget
    cache: Path
    general: str
    offline: bool

    @property
    def is_plain(self) -> bool:
        """Whether an index is used without TLS, as one on this machine may be."""
        return any(url.startswith("http:") for url in (self.general, *self.indexes.values()))

    @cached_property
    def pins(self) -> dict[str, str]:
        """Pins by project; if two layers pin different versions, uv reports that."""
        return {name: pin for layer in self.layers for name, pin in pins_by_project(layer.pins).items()}

    @cached_property
    def taken(self) -> dict[str, str]:
        """Requirements for the layers' indexes, by project: pins, and bare names of projects beside them."""
        beside = (name for layer in self.layers for name in layer.beside if name in self.indexes)
        return {name: name for name in beside} | self.pins

    @cached_property
    def here(self) -> dict[str, str]:
        """Versions by project for which no index is asked: the layers, and other packages of the image.

        The distribution `triton` is included: ROCm's has another name, but packages that require `triton` mean the
        module. The layers write a distribution of that name beside it (python.sh), in a version that no index has.
        """
        versions = [(name, version) for layer in self.layers for name, version in layer.has.items()]
        found = {str(canonicalize_name(name)): str(Version(one)) for name, one in versions if is_version(one)}
        for name in ROCM_TRITONS:
            if name in self.pins:
                found[TRITON] = _stand_in_version(version_of_pin(self.pins[name]))
            elif name in found:
                found.setdefault(TRITON, _stand_in_version(found[name]))
        layers = {one.project: str(version_of(one.version) or 0) for one in self.layers}
        return {name: version for name, version in found.items() if name not in self.taken} | layers

    def resolve(self, folder: Path, until: dt.date | None, preferred: Mapping[str, str]) -> ResolvedVersions:
        """Return versions that are compatible; writes the project to `folder`. Raises as `compile_versions` does."""
        from lumiimg.fetch.http import with_login

        (folder / _HERE).mkdir(exist_ok=True)
        required = {one.project: (*one.pins, *one.requires) for one in self.layers}
        for name, version in self.here.items():
            _write_wheel(folder / _HERE, name, version, required.get(name, ()))
        urls = list(dict.fromkeys(self.indexes.values()))
        here = (f"{name}=={version}" for name, version in self.here.items())
        wanted = [*here, *self.taken.values(), *self.requirements]
        sources = {name: f"i{urls.index(self.indexes[name])}" for name in self.taken} | dict.fromkeys(self.here, _HERE)
        indexes: list[dict[str, Any]] = [{"name": _HERE, "url": _HERE, "format": "flat", "explicit": True}]
        indexes += ({"name": f"i{at}", "url": with_login(url), "explicit": True} for at, url in enumerate(urls))
        uv = {
            "workspace": {"members": []},  # else uv would look for a workspace in the folders above, up to the home
            "sources": {name: {"index": index} for name, index in sources.items()},
            "index": indexes,
        }
        project = {"name": THIS_IMAGE, "version": "0", "requires-python": ">=3.8", "dependencies": wanted}
        preferred_pins = (f"{name}=={version}\n" for name, version in preferred.items() if name not in sources)
        without = {name for layer in self.layers for name in layer.without}
        if "torch" in sources and TRITON not in {*sources, *pins_by_project(self.requirements)}:
            without.add(TRITON)  # whichever the image has: PyPI's is for CUDA, and would overwrite its files
        settings: dict[str, Any] = {
            "no-build": True,
            "offline": self.offline,
            "index": [{"name": "general", "url": with_login(self.general), "default": True}],
            "override-dependencies": [f"{name} ; {_NEVER}" for name in sorted(without)],
        }
        if until is not None:
            settings["exclude-newer"] = f"{until.isoformat()}T23:59:59Z"
            settings["exclude-newer-package"] = dict.fromkeys(sources, False)
        for file, text in (
            ("pyproject.toml", tomli_w.dumps({"project": project, "tool": {"uv": uv}})),
            ("uv.toml", tomli_w.dumps(settings)),
            ("held.txt", "".join(preferred_pins)),
        ):
            (folder / file).write_text(text, encoding="utf-8")
        return compile_versions(folder, self.target, self.cache)


def _stand_in_version(triton: str) -> str:
    """Return the version of the distribution `triton` beside ROCm's triton: that of ROCm's, with a local part."""
    return f"{Version(triton).public}+rocm"


def _write_wheel(folder: Path, name: str, version: str, requires: Sequence[str]) -> None:
    """Write a wheel that contains only its metadata."""
    stem = f"{name.replace('-', '_')}-{version}"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    about = "Wheel-Version: 1.0\nGenerator: lumiimg\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{stem}.dist-info/METADATA", "\n".join([*lines, ""]))
        archive.writestr(f"{stem}.dist-info/WHEEL", about)
        archive.writestr(f"{stem}.dist-info/RECORD", "")


def _wheel(package: LockedPackage, target: PythonTarget) -> LockedSource:
    """Return the best wheel of a release, as pip would choose it. Raises FailedError if none fits."""
    name = str(canonicalize_name(package.name))
    found: list[tuple[tuple[int, Any], LockedSource]] = []
    for wheel in package.wheels:
        sha256 = wheel.hashes.get("sha256", "").lower()
        try:
            one = locked_wheel(wheel.url, sha256 if SHA256.fullmatch(sha256) else None, wheel.size)
            rank = target.rank(one.file)
        except ValueError:
            continue
        if rank is None or (one.name, Version(one.version)) != (name, Version(package.version)):
            continue
        validated_url(wheel.url, f"the wheel of {name}")
        build = parse_wheel_filename(one.file)[2]
        found.append(((-rank, build), one))
    if not found:
        raise FailedError(f"no wheel of {name} {package.version} for {target}")
    return max(found, key=lambda one: one[0])[1]


def _by_layer(
    layers: Sequence[LayerRequirements], wheels: Sequence[LockedSource], requirers: Mapping[str, frozenset[str]]
) -> dict[str, tuple[LockedSource, ...]]:
    """Return the wheels of each layer. A wheel belongs to the first layer that requires it, directly or indirectly; if
    none does, to the user's packages.
    """
    found: dict[str, list[LockedSource]] = {layer.name: [] for layer in layers}
    for wheel in sorted(wheels, key=lambda wheel: wheel.name):
        above = {*all_requirers(wheel.name, requirers)}
        owner = next((layer.name for layer in layers if layer.project in above), OWN_PACKAGES)
        found.setdefault(owner, []).append(wheel)
    return {name: tuple(several) for name, several in found.items()}
