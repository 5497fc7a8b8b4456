"""All Python distributions of an image, resolved at once and before anything is built, for the Python of the image.

uv resolves, and says in its own words what does not go together. What it sees of an image is a project `this-image`
that requires its layers: each a wheel without content, `layer-vllm`, that requires what the layer wants. What the image
has otherwise (a torch of the base) is such a wheel, too: it is there, in that version, and no index is asked for it.
What the user asks for is required by the project itself.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import tomli_w
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from lumiimg.catalog.layers import SHA256
from lumiimg.catalog.needs import is_version
from lumiimg.engine.workspace import scratch_folder
from lumiimg.errors import FailedError
from lumiimg.fetch.http import Http, display_url, require_tls_or_digest
from lumiimg.fetch.mirrors import general_index, validated_url
from lumiimg.gpu.cuda import is_of_cuda
from lumiimg.resolve.lock import STAGED_FILE, LockedSource
from lumiimg.resolve.stack import OWN_PACKAGES
from lumiimg.resolve.uv import NoSolutionError, NoTimesError, compile_lock, compile_versions

if TYPE_CHECKING:
    import datetime as dt
    from pathlib import Path

    from lumiimg.fetch.store import Sources
    from lumiimg.resolve.python_target import PythonTarget

TRITON = "triton"
ROCM_TRITONS = ("pytorch-triton-rocm", "triton-rocm")
"""What PyTorch calls its triton for ROCm: up to 2.9, and from then on. Source: METADATA of torch at its own index."""
_LAYER = "layer-"
_SHOWN = 8
_UV = "uv"
"""In the cache: what uv keeps."""
THIS_IMAGE = "this-image"
"""What uv calls the project, whose requirements are the layers and the user's own."""
_PAGE_LIMIT_BYTES = 64 * 1024 * 1024
_NEVER = "sys_platform == 'never'"
# It answers 403 for a project that it does not have. Source: uv, IndexStatusCodeStrategy::from_index_url;
# pytorch/pytorch#145983. Anywhere else 403 is "not for you", which must not send a request on to the next index.
_FORBIDDEN_MEANS_ABSENT = ("pytorch.org",)


class CudaError(FailedError):
    """A distribution for CUDA is required by one that was asked for."""


@dataclass(frozen=True, slots=True)
class LayerRequirements:
    """What one layer wants of Python."""

    name: str
    version: str
    pins: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    """Where the pins are looked for, each in the first that has it; mirrors in their places."""
    requires: tuple[str, ...] = ()
    """Whatever else it requires: it comes from the general index."""
    without: tuple[str, ...] = ()
    """Projects that are left out, whoever requires them."""
    has: Mapping[str, str] | None = None
    """Versions of what it brings in another way than by wheels, or the base has."""
    date: dt.date | None = None
    """What it requires is taken as of this day, where that goes together with the rest; None: as of the day of all."""
    label: str = ""
    """How a refusal calls it; empty: `the layer NAME`."""

    @property
    def title(self) -> str:
        """What a refusal calls it."""
        return self.label or f"the layer {self.name}"

    @property
    def project(self) -> str:
        """What uv calls it."""
        return f"{_LAYER}{canonicalize_name(self.name)}"

    @property
    def as_installed(self) -> LayerRequirements:
        """The layer as one that is in the image already, so that no index is asked for anything of it."""
        pinned = {one.name: spec.version for one in map(Requirement, self.pins) for spec in one.specifier}
        return replace(self, pins=(), requires=(), has={**(self.has or {}), **pinned})


def resolve_wheels(
    layers: Sequence[LayerRequirements],
    target: PythonTarget,
    sources: Sources,
    *,
    until: dt.date | None,
    preferred: Mapping[str, str],
    requirements: Sequence[str] = (),
    refuse: Callable[[Mapping[str, frozenset[str]]], None] | None = None,
) -> dict[str, tuple[LockedSource, ...]]:
    """Return the wheels of each layer: its own, and those that it is the first to require, by name; under the name
    OWN_PACKAGES those that the user's `requirements` bring beside them. One whose index gives no digest has none yet.

    Nothing is taken that was uploaded after the end of the day `until`, but for what is pinned; `preferred` are
    versions to keep where they still fit. Layers of an earlier day come first, as of that day: what they get then stays
    where it goes together with the layers of later days, so that a new layer does not bring an old one what it never
    met.

    `refuse` raises for a project that is not to come in, by who requires each; None: for those of CUDA (`refuse_cuda`).

    Raises FailedError for what cannot be had, NoSolutionError for what does not go together, CudaError where CUDA comes
    in.
    """
    general = general_index(sources.mirrors)
    require_tls_or_digest(general)
    pins = _pins(layers)
    of = {name: _index_of(name, layer.indexes or (general,), sources.web) for name, (_, layer) in pins.items()}
    made = partial(_project, of=of, general=general, offline=sources.web.offline)
    for day in sorted({layer.date for layer in layers if layer.date and until and layer.date < until}):
        of_day = [layer if layer.date and layer.date <= day else layer.as_installed for layer in layers]
        preferred = {**preferred, **_as_of(day, made(of_day), target, sources.cache, preferred)}
    project = made(layers, requirements=requirements)
    cache = sources.cache / _UV
    with scratch_folder(sources.cache) as folder:
        project.write(folder, preferred)
        try:
            project.configure(folder, until)
            try:
                packages, noted, warned = compile_lock(folder, target, cache)
            except NoTimesError:
                sources.on_line(f"the index gives no upload times, so the date {until} has no effect")
                until = None
                project.configure(folder, until)
                packages, noted, warned = compile_lock(folder, target, cache)
        except NoSolutionError as error:
            error.hint = _hint(error, pins, until, has_own=bool(requirements))
            raise
    parents = _parents(noted)
    (refuse or refuse_cuda)(parents)
    for line in warned:
        sources.on_line(line)
    wheels = [_wheel(one, target) for one in packages if "archive" not in one]
    if (plain := [one.location for one in wheels if one.location.startswith("http:")]) and not project.is_plain:
        raise FailedError(f"its index, with TLS, links to a wheel without: {plain[0][:200]}, which is not followed")
    return _assigned(layers, wheels, parents)


def _hint(
    error: NoSolutionError, pins: Mapping[str, tuple[str, LayerRequirements]], until: dt.date | None, *, has_own: bool
) -> str | None:
    """Return what to do about a refusal of uv's, with the layers of what is pinned; None: the user's lines decide."""
    if until and error.is_by_date:
        by_date = f"uploads after {until} are excluded: use another date with --exclude-newer"
        return by_date if has_own else f"{by_date}, or ask for another release"
    pinned = [f"{layer.title} pins {pin}" for name, (pin, layer) in pins.items() if is_named(name, error.what)]
    return None if has_own else "; ".join([*pinned[:_SHOWN], "ask for another release"])


def is_named(project: str, text: str) -> bool:
    """Whether a sentence of uv's names a project."""
    return re.search(rf"(?<![\w.-]){re.escape(project)}(?![\w.-])", text) is not None


def with_digests(wheels: Sequence[LockedSource], sources: Sources) -> tuple[LockedSource, ...]:
    """Return wheels as a lock has them: by addresses that hold without a mirror, each with its digest, which is that of
    the first download where the index gives none.
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


def _project(
    layers: Sequence[LayerRequirements],
    of: Mapping[str, str],
    general: str,
    *,
    offline: bool,
    requirements: Sequence[str] = (),
) -> _Project:
    pins = _pins(layers)
    return _Project(
        layers, pins, _there(layers, pins), {name: of[name] for name in pins}, requirements, general, offline=offline
    )


def _as_of(
    day: dt.date, project: _Project, target: PythonTarget, cache: Path, preferred: Mapping[str, str]
) -> dict[str, str]:
    """Return the versions that a project gets as of a day; none where its parts did not go together then."""
    with scratch_folder(cache) as folder:
        project.write(folder, preferred)
        project.configure(folder, day)
        try:
            return compile_versions(folder, target, cache / _UV)[0]
        except (NoTimesError, NoSolutionError):
            return {}


def _pins(layers: Sequence[LayerRequirements]) -> dict[str, tuple[str, LayerRequirements]]:
    """Return each pin and the layer that has it, by project. Raises FailedError where two are of other versions."""
    found: dict[str, tuple[str, LayerRequirements]] = {}
    for layer in layers:
        for pin in layer.pins:
            name = canonicalize_name(Requirement(pin).name)
            before, other = found.setdefault(name, (pin, layer))
            if Requirement(before).specifier != Requirement(pin).specifier:
                raise FailedError(
                    f"these conflict: {before} of the layer {other.name} and {pin} of the layer {layer.name}",
                    hint="ask for another release of one of them",
                )
    return found


def _there(layers: Sequence[LayerRequirements], pins: Collection[str]) -> dict[str, str]:
    """Return the versions of what needs no wheel, by project: it is in the image in another way.

    The distribution `triton` is one: ROCm's has another name, and what requires `triton` means the module. The layers
    write a distribution of that name beside it (python.sh), in a version that no index has.
    """
    there: dict[str, str] = {}
    for layer in layers:
        for name, version in (layer.has or {}).items():
            if canonicalize_name(name) not in pins and is_version(version):
                there[canonicalize_name(name)] = version
        for pin in layer.pins:
            requirement = Requirement(pin)
            if canonicalize_name(requirement.name) in ROCM_TRITONS:
                (version,) = (one.version for one in requirement.specifier)
                there[TRITON] = stand_in_version(version)
    for name in ROCM_TRITONS:
        if name in there:
            there.setdefault(TRITON, stand_in_version(there[name]))
    return {name: version for name, version in there.items() if name not in pins}


def stand_in_version(triton: str) -> str:
    """Return the version of the distribution `triton` that stands beside ROCm's: that of ROCm's, as a local version."""
    return f"{Version(triton).public}+rocm"


def _index_of(name: str, indexes: Sequence[str], web: Http) -> str:
    """Return the first index that has the project. One that cannot answer is an error, never a reason to go on.

    So versions of two indexes are never mixed: a torch for CUDA of the general index cannot win over one for ROCm.
    """
    for index in indexes:
        require_tls_or_digest(index)
        url = f"{validated_url(index, 'the package index').rstrip('/')}/{name}/"
        absent = _absent_statuses(url)
        headers = {"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.1"}
        if web.get(url, limit_bytes=_PAGE_LIMIT_BYTES, headers=headers, allow=absent).status not in absent:
            return index
    raise FailedError(f"no package index has {name}: {', '.join(map(display_url, indexes))[:400]}")


def _absent_statuses(url: str) -> frozenset[int]:
    """Return the HTTP statuses by which the server of this address says that it does not have something."""
    host = urlsplit(url).hostname or ""
    forbidden = any(host == known or host.endswith(f".{known}") for known in _FORBIDDEN_MEANS_ABSENT)
    return frozenset({404, 403}) if forbidden else frozenset({404})


@dataclass(frozen=True, slots=True)
class _Project:
    """What uv is asked."""

    layers: Sequence[LayerRequirements]
    pins: Mapping[str, tuple[str, LayerRequirements]]
    there: Mapping[str, str]
    index_of: Mapping[str, str]
    requirements: Sequence[str]
    """The user's own."""
    general: str
    offline: bool

    @property
    def is_plain(self) -> bool:
        """Whether an index is without TLS, as one of this machine may be."""
        return any(url.startswith("http:") for url in (self.general, *self.index_of.values()))

    def write(self, folder: Path, preferred: Mapping[str, str]) -> None:
        """Write the project, its wheels without content, and what is to be kept."""
        from lumiimg.fetch.logins import with_login

        sources: dict[str, dict[str, str]] = {}
        for layer in self.layers:
            version = layer.version if is_version(layer.version) else "0"
            wheel = _write_wheel(folder, layer.project, version, (*layer.pins, *layer.requires))
            sources[layer.project] = {"path": wheel}
        for name, version in self.there.items():
            sources[name] = {"path": _write_wheel(folder, name, version, ())}
        named = list(dict.fromkeys(self.index_of.values()))
        wanted = [*sources, *(pin for pin, _ in self.pins.values()), *self.requirements]
        sources |= {name: {"index": f"i{named.index(url)}"} for name, url in self.index_of.items()}
        project = {"name": THIS_IMAGE, "version": "0", "requires-python": ">=3.8", "dependencies": wanted}
        indexes = [{"name": f"i{at}", "url": with_login(url), "explicit": True} for at, url in enumerate(named)]
        # a workspace of its own: uv would look for one in the folders above, as far as the user's home
        own = {"workspace": {"members": []}, "sources": sources, "index": indexes}
        document = {"project": project, "tool": {"uv": own}}
        (folder / "pyproject.toml").write_text(tomli_w.dumps(document), encoding="utf-8")
        kept = "".join(f"{name}=={version}\n" for name, version in preferred.items() if name not in sources)
        (folder / "held.txt").write_text(kept, encoding="utf-8")

    def configure(self, folder: Path, until: dt.date | None) -> None:
        """Write the settings."""
        from lumiimg.fetch.logins import with_login

        left_out = {str(canonicalize_name(name)) for layer in self.layers for name in layer.without}
        if "torch" in {*self.pins, *self.there} and TRITON not in {*self.pins, *self.there}:
            left_out.add(TRITON)  # whichever the image has: PyPI's is CUDA's, and would lie over its files
        settings: dict[str, Any] = {
            "no-build": True,
            "offline": self.offline,
            "index": [{"name": "general", "url": with_login(self.general), "default": True}],
            "override-dependencies": [f"{name} ; {_NEVER}" for name in sorted(left_out)],
        }
        if until is not None:
            settings["exclude-newer"] = f"{until.isoformat()}T23:59:59Z"
            settings["exclude-newer-package"] = dict.fromkeys(self.pins, False)
        (folder / "uv.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")


def _write_wheel(folder: Path, name: str, version: str, requires: Sequence[str]) -> str:
    """Write a wheel that holds nothing but what it says of itself; return its file name."""
    stem = f"{name.replace('-', '_')}-{version}"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    about = "Wheel-Version: 1.0\nGenerator: lumiimg\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{stem}.dist-info/METADATA", "\n".join([*lines, ""]))
        archive.writestr(f"{stem}.dist-info/WHEEL", about)
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return f"{stem}-py3-none-any.whl"


def _parents(noted: str) -> dict[str, frozenset[str]]:
    """Return by whom each project is required, from what uv annotated: `numpy==2.2.6  # via numba, scipy`."""
    found: dict[str, frozenset[str]] = {}
    for line in noted.splitlines():
        what, _, via = line.partition("# via ")
        what = what.strip().rpartition("/")[2]
        name = what.split("-")[0] if what.endswith(".whl") else re.split(r"[=\[ ;]", what)[0]
        if name:
            by = (canonicalize_name(one.split()[0]) for one in via.split(", ") if one)
            found[canonicalize_name(name)] = frozenset(by)
    return found


def refuse_cuda(parents: Mapping[str, frozenset[str]]) -> None:
    """Raise CudaError if a project of CUDA's is among those that are required."""
    for name in sorted(parents):
        if is_of_cuda(name):
            by = ", ".join(sorted(parents[name]))
            raise CudaError(
                f"{name}, of CUDA, is required by {by[:200]}: a wheel that is not for ROCm was selected",
                hint="use the layer's releases unchanged, or report the layer",
            )


def _wheel(package: Mapping[str, Any], target: PythonTarget) -> LockedSource:
    """Return the best wheel of a release, as pip would choose it. Raises FailedError for what no lock can hold."""
    ranks = {tag: rank for rank, tag in enumerate(target.tags())}
    name, version = canonicalize_name(str(package["name"])), str(package["version"])
    best: tuple[int, Any, LockedSource] | None = None
    for wheel in package.get("wheels", ()):
        url = str(wheel["url"])
        file = str(wheel.get("name") or unquote(urlsplit(url).path).rpartition("/")[2])
        try:
            own, of_version, build, _ = parse_wheel_filename(file)
            rank = target.rank(file, ranks)
        except ValueError:
            continue
        if rank is None or own != name or of_version != Version(version) or not STAGED_FILE.fullmatch(file):
            continue
        sha256 = str(wheel.get("hashes", {}).get("sha256", "")).lower()
        known = sha256 if SHA256.fullmatch(sha256) else None
        found = LockedSource(name, "", file, known, validated_url(url, f"the wheel of {name}"), version=version)
        if best is None or (-rank, build) > best[:2]:
            best = (-rank, build, found)
    if best is None:
        raise FailedError(f"no wheel of {name} {version} for {target}")
    return best[2]


def _assigned(
    layers: Sequence[LayerRequirements], wheels: Sequence[LockedSource], parents: Mapping[str, frozenset[str]]
) -> dict[str, tuple[LockedSource, ...]]:
    """Return the wheels of each layer: those that it requires, in however many steps, and no layer below it."""
    children: dict[str, set[str]] = {}
    for name, above in parents.items():
        for one in above:
            children.setdefault(one, set()).add(name)
    left = {wheel.name: wheel for wheel in wheels}
    found: dict[str, tuple[LockedSource, ...]] = {}
    for layer in layers:
        reached, waiting = set[str](), [layer.project]
        while waiting:
            for child in children.get(waiting.pop(), set()) - reached:
                reached.add(child)
                waiting.append(child)
        found[layer.name] = tuple(left.pop(name) for name in sorted(reached & left.keys()))
    return found | ({OWN_PACKAGES: tuple(left[name] for name in sorted(left))} if left else {})
