"""Bases and layers: the folder `layers/<name>/` as a validated value (docs/extend/layer.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from packaging.requirements import InvalidRequirement, Requirement

from lumiimg.catalog.named_images import ImageNames, read_names
from lumiimg.catalog.needs import Need, read_needs
from lumiimg.catalog.templates import check_placeholders, expand
from lumiimg.catalog.toml_table import CatalogError, Table, read_limited, read_text, read_toml
from lumiimg.catalog.unlisted import Unlisted, read_unlisted

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping
    from pathlib import Path


Reach = Literal["documented", "resolved", "rehearsed", "built", "run"]
Status = Reach | Literal["read", "derived"]
"""How far something was tried (ledger.py), or how what is known of it was found."""
NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(\[[a-z0-9,._-]{1,99}\])?==[0-9][A-Za-z0-9.+!_-]{0,63}")
SHA256 = re.compile(r"[0-9a-f]{64}")
PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]{0,99}")
"""Of Debian; debootstrap takes no option for one."""
SUITE = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
"""debootstrap runs its script of that name: no path, no option."""
_NET_APIS = frozenset({"net-api", "net-api-oldest"})
_NET_API = re.compile(r"[0-9]{1,2}")
SCRIPT_LIMIT_BYTES = 256 * 1024
RULES = ("glibc-gate", "driver-window", "plugin-abi", "fabric", "torch", "layers")
"""Of compatibility, by which a refusal is named (docs/extend/layer.md)."""
AGENTS = ("debootstrap", "docker", "localimage")
# What bash, the engine and this writer use themselves.
RESERVED = frozenset(
    {"PATH", "HOME", "IFS", "MAKEFLAGS", "LAYER_FILES", "KEPT", "LD_LIBRARY_PATH", "LD_PRELOAD", "BASH_ENV"}
)


@dataclass(frozen=True, slots=True)
class Argument:
    """A value that the user can set, and that post.sh gets as a variable."""

    name: str
    default: str
    """Value where none is given."""
    help: str
    """What it does."""
    pattern: re.Pattern[str] | None


@dataclass(frozen=True, slots=True)
class LayerSource:
    """An archive that a layer is built from. `{NAME}` in url, file and key stands for an argument."""

    name: str
    url: str
    """Where it is fetched; may hold the layer's arguments."""
    file: str
    key: str
    sha256: Mapping[str, str]
    """In hexadecimal, by the version that it is of."""
    optional: bool = False
    """Whether it has no address, and is there only where the user gives it."""
    requirements: tuple[str, ...] = ()
    """Files in it that say what it requires of Python, by their paths below its top folder."""

    @property
    def variable(self) -> str:
        """How post.sh gets the path."""
        return "SOURCE_" + re.sub(r"[.-]", "_", self.name).upper()


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """One way to get a base: the header of its definition file."""

    agent: str
    """`debootstrap`, `docker`, `localimage`; of an image of the user's any that reads it."""
    origin: str
    """The suite, the image reference, or the path of a file."""
    mirror: str | None = None
    """Name of the mirror that debootstrap needs (`debian`)."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A member of a family of bases: the same in all but its image and versions."""

    name: str
    summary: str
    has: Mapping[str, str]
    bootstrap: Bootstrap
    status: Status = "documented"
    """How far it was tried (ledger.py)."""


@dataclass(frozen=True, slots=True)
class Release:
    """One version of what a layer puts in, with what only this version needs and has."""

    version: str
    """Of it."""
    requires: tuple[Need, ...]
    """What must be below it. As `name>=1.2`."""
    has: Mapping[str, str]
    arguments: Mapping[str, str]
    """Values of the layer's arguments that belong to it."""
    wheels: tuple[str, ...]
    """Python distributions, each pinned: `torch==2.9.1+rocm6.4`."""
    indexes: tuple[str, ...]
    """Where they are looked for, each project in the first that has it; none: where their requirements are."""
    source: str
    """What was read."""
    date: dt.date | None = None
    """When it was uploaded, ISO 8601; null where the index does not say."""
    without: tuple[str, ...] = ()
    """Python distributions that are left out, whoever requires them."""
    unused: tuple[str, ...] = ()
    """Sources of the layer that it is not built from."""
    expects: tuple[Need, ...] = ()
    """What its own project builds it with: another is refused, and one that is not known is a doubt."""
    gpus: tuple[str, ...] = ()
    """What its source has code for, where that is known."""
    read: dt.date | None = None
    """The day on which it was read, ISO 8601."""
    derived: str | None = None
    """The release whose facts were taken for it, as its own could not be read."""
    doubts: tuple[str, ...] = ()
    """What was seen against it when it was read, each a clause."""
    status: Status = "documented"
    """How far this release was tried."""

    @property
    def is_unlisted(self) -> bool:
        """Whether nobody wrote it down: it was read, or derived."""
        return self.status in {"read", "derived"}


@dataclass(frozen=True, slots=True)
class KnownTrouble:
    """A combination that is known to give trouble."""

    given: tuple[Need, ...]
    """All of these must hold of the stack."""
    unless: tuple[Need, ...]
    """And none of these."""
    refused: bool
    """Whether it cannot work at all."""
    rule: str
    because: str
    source: str


@dataclass(frozen=True, slots=True)
class Layer:
    """A base (it has bootstraps) or a layer (it has none)."""

    name: str
    """Name in the catalogue, or the image."""
    folder: Path
    """Where its files are."""
    summary: str
    """One sentence."""
    source: str
    """Where its recipe comes from."""
    date: dt.date
    """When that was looked up, ISO 8601."""
    status: Status = "documented"
    """How far it was tried; of several releases, the one that got furthest."""
    requires: tuple[Need, ...] = ()
    """What must be below it. As `name>=1.2`."""
    provides: tuple[str, ...] = ()
    """Components that it brings without a version."""
    has: Mapping[str, str] = field(default_factory=dict)
    """Versions of components that it brings, by component; `{NAME}` stands for an argument."""
    conflicts: tuple[str, ...] = ()
    """Layers that it cannot be built with."""
    releases: tuple[Release, ...] = ()
    """The one to prefer first; empty where there is only the one that the arguments name."""
    unlisted: Unlisted | None = None
    """How others are read."""
    troubles: tuple[KnownTrouble, ...] = ()
    files: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    """What post.sh needs of a Python package index where the release has no wheels: requirements, as in PEP 508."""
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    """By name (`--arg LAYER.NAME=VALUE`)."""
    sources: tuple[LayerSource, ...] = ()
    set_environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that are set."""
    prepend_environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that something is put in front of."""
    bootstraps: tuple[Bootstrap, ...] = ()
    variants: tuple[Variant, ...] = ()
    """Of a family of bases: its members, which have names of their own."""
    named: ImageNames | None = None
    """Of a family of bases: how images are called that are members without a word here."""
    by_name: bool = False
    """Whether what it has was read in its name alone."""
    include: tuple[str, ...] = ()
    """Of a base: packages that debootstrap brings along, and that post.sh has as INCLUDE."""
    post: str = ""
    test: str | None = None
    is_foreign: bool = False
    """An image of somebody's, read: it is in no catalogue, and `folder` is its own path."""

    @property
    def is_base(self) -> bool:
        """Whether an image can start from it, or from a member of its family."""
        return bool(self.bootstraps or self.variants)

    def sources_of(self, release: Release | None) -> tuple[LayerSource, ...]:
        """Return the archives that a release is built from; all where there is none."""
        return tuple(one for one in self.sources if release is None or one.name not in release.unused)

    def needs_of(self, release: Release | None) -> tuple[Need, ...]:
        """Return what must be below it, in a release."""
        return (*self.requires, *(release.requires if release else ()))

    def member(self, name: str) -> Layer:
        """Return the base that is the member `name` of this family. Raises KeyError if there is none."""
        found = {variant.name: variant for variant in self.variants}[name]
        return replace(
            self,
            name=name,
            summary=found.summary,
            status=found.status,
            has={**self.has, **found.has},
            bootstraps=(found.bootstrap,),
            variants=(),
            named=None,
        )


def read_layer(folder: Path) -> Layer:
    """Read and validate `folder/layer.toml` and the scripts beside it.

    Raises CatalogError, which names the file, every wrong key, and what is allowed there.
    """
    path = folder / "layer.toml"
    table = Table(read_toml(path), path)
    if not NAME.fullmatch(folder.name):
        table.faults.append(f"its folder's name {folder.name!r} should be lower-case letters, digits, dots, dashes")
    kind = table.choice("kind", ("base", "layer"))
    arguments = {name: _argument(name, entry, table) for name, entry in table.named_tables("arguments")}
    environment = table.table("environment")
    files = table.strings("files")
    for file in files:
        if not _FILE.fullmatch(file):
            table.fault("files", f"holds {file!r}: a plain file name of letters, digits, dots, dashes is needed")
        elif (folder / file).is_symlink() and not (folder / file).exists():
            table.fault("files", f"names {file!r}, which is a broken link: copy a layer with `cp -rL`")
        elif not (folder / file).is_file():
            table.fault("files", f"names {file!r}, which is not in {folder}")
        elif not _is_inside(folder / file, folder):
            table.fault("files", f"names {file!r}, which is a link to a file outside {folder}")
    layer = table.fill(
        Layer,
        name=folder.name,
        folder=folder,
        status=_untried(table),
        requires=read_needs(table, "requires"),
        has=_has(table, arguments),
        releases=tuple(read_release(entry, arguments) for entry in table.tables("release")),
        unlisted=table.optional("unlisted", lambda entry: read_unlisted(entry, arguments)),
        troubles=tuple(_trouble(entry) for entry in table.tables("trouble")),
        files=files,
        packages=_packages(table, arguments),
        arguments=arguments,
        sources=tuple(_source(name, entry, arguments) for name, entry in table.named_tables("sources")),
        set_environment=_environment(environment.table("set"), arguments),
        prepend_environment=_environment(environment.table("prepend"), arguments),
        bootstraps=tuple(_bootstrap(entry) for entry in table.tables("bootstrap")) if kind == "base" else (),
        variants=tuple(_variant(entry, arguments) for entry in table.tables("variant")) if kind == "base" else (),
        named=table.optional("named", read_names) if kind == "base" else None,
        by_name=False,
        include=table.strings("include") if kind == "base" else (),
        post=_script(folder / "post.sh", table, required=True) or "",
        test=_script(folder / "test.sh", table, required=False),
        is_foreign=False,
    )
    known = {source.name for source in layer.sources}
    for name in {name for release in layer.releases for name in release.unused} - known:
        table.fault("release", f"names {name!r} as unused, which is not a source of this layer")
    for package in layer.include:
        if not PACKAGE.fullmatch(package):
            table.fault("include", f"holds {package!r}, which is not a valid name of a package")
    if kind == "base" and bool(layer.bootstraps) == bool(layer.variants):
        table.faults.append("a base needs [[bootstrap]], or, as a family of bases, [[variant]]")
    names = [variant.name for variant in layer.variants]
    table.faults.extend(f"the base {name!r} is there twice" for name in {*names} if names.count(name) > 1)
    table.finish()
    return layer


def variant_names(path: Path) -> list[str]:
    """Return the names of the members, where a layer.toml is that of a family; nothing where it cannot be read."""
    try:
        if b"variant" not in read_limited(path, SCRIPT_LIMIT_BYTES):
            return []
        variants = read_toml(path).get("variant")
    except (CatalogError, OSError):
        return []  # who asks for it by name gets the error
    entries = variants if isinstance(variants, list) else []
    return [name for entry in entries if isinstance(entry, dict) and isinstance(name := entry.get("name"), str)]


def own_values(layer: Layer, release: Release | None) -> dict[str, str]:
    """Return the values of a layer's arguments where nobody gives others: the release's, then the layer's."""
    values = {argument.name: argument.default for argument in layer.arguments.values()}
    if release is not None:
        values |= {"VERSION": release.version, **release.arguments}
    return {name: value for name, value in values.items() if name in layer.arguments}


def _untried(table: Table) -> Reach:
    """Return the status of what was just read; a file of 0.1.0 has a word of its own there, which says nothing now."""
    table.optional_string("status")
    return "documented"


def _has(table: Table, arguments: Mapping[str, Argument]) -> dict[str, str]:
    versions = table.table("has")
    values = versions.string_values()
    for component, version in values.items():
        if component in _NET_APIS and not _NET_API.fullmatch(version):
            versions.fault(component, f"is {version!r}; the number of an API of RCCL's net plugins is needed: '12'")
        check_placeholders(versions, component, version, arguments)
    return values


def _packages(table: Table, arguments: Mapping[str, Argument]) -> tuple[str, ...]:
    found = table.strings("packages")
    for text in found:
        check_placeholders(table, "packages", text, arguments)
        try:
            Requirement(expand(text, dict.fromkeys(arguments, "1")))
        except InvalidRequirement:
            table.fault("packages", f"holds {text!r}, which is not a valid requirement")
    return found


def read_release(entry: Table, arguments: Mapping[str, Argument]) -> Release:
    """Return a row; what is wrong in it is a fault of the file."""
    values = entry.table("arguments")
    release = entry.fill(
        Release,
        requires=read_needs(entry, "requires"),
        expects=read_needs(entry, "expects"),
        has=_has(entry, arguments),
        arguments=values.string_values(any_text=True),
        status=_untried(entry),
    )
    if release.read or release.derived:
        release = replace(release, status="derived" if release.derived else "read")
    for pin in release.wheels:
        if not PIN.fullmatch(pin):
            entry.fault("wheels", f"holds {pin!r}: a distribution in one version is needed: 'torch==2.9.1+rocm6.4'")
    for name in release.arguments:
        if name not in arguments:
            values.fault(name, f"is not an argument of this layer; known: {', '.join(arguments) or 'none'}")
    return release


def row_of(release: Release) -> dict[str, Any]:
    """Return a release as `read_release` reads it back."""
    row = {
        "version": release.version,
        "date": release.date,
        "requires": [*map(str, release.requires)],
        "expects": [*map(str, release.expects)],
        "has": dict(release.has),
        "arguments": dict(release.arguments),
        **{key: [*getattr(release, key)] for key in ("gpus", "wheels", "indexes", "without", "unused", "doubts")},
        "source": release.source,
        "read": release.read,
        "derived": release.derived,
    }
    return {key: value for key, value in row.items() if value}


def _trouble(entry: Table) -> KnownTrouble:
    return entry.fill(
        KnownTrouble,
        given=read_needs(entry, "given"),
        unless=read_needs(entry, "unless"),
        refused=entry.choice("outcome", ("refused", "warning")) == "refused",
        rule=entry.choice("rule", RULES),
    )


def _argument(name: str, table: Table, parent: Table) -> Argument:
    if not VARIABLE.fullmatch(name) or name in RESERVED or name.startswith("SOURCE_"):
        parent.fault(f"arguments.{name}", "should be a variable name like VERSION, and not one that the build uses")
    return Argument(
        name=name,
        default=table.string("default", may_be_empty=True, any_text=True),
        help=table.string("help"),
        pattern=table.pattern("pattern"),
    )


def _source(name: str, table: Table, arguments: Mapping[str, Argument]) -> LayerSource:
    if not NAME.fullmatch(name):
        table.fault("", "should be named with lower-case letters, digits, dots, dashes")
    table.string("source")
    if table.flag("optional"):
        return LayerSource(name, "", table.string("file"), "", {}, optional=True)
    digests = table.table("sha256")
    source = table.fill(LayerSource, name=name, sha256=digests.string_values(), optional=False)
    for key, digest in source.sha256.items():
        if not SHA256.fullmatch(digest):
            digests.fault(key, "should be 64 hexadecimal digits")
    for key in ("url", "file", "key"):
        check_placeholders(table, key, getattr(source, key), arguments)
    if not source.url.startswith(("https://", "http://")):
        table.fault("url", "should begin with https://")
    return source


def _environment(table: Table, arguments: Mapping[str, Argument]) -> dict[str, str]:
    values = table.string_values()
    for name, value in values.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            table.fault(name, "is not a valid variable name")
        check_placeholders(table, name, value, arguments)
    return values


def _bootstrap(table: Table) -> Bootstrap:
    agent = table.choice("agent", AGENTS)
    if agent == "debootstrap":
        table.match("from", SUITE, "not a valid name of a suite")
    return Bootstrap(agent=agent, origin=table.string("from"), mirror=table.optional_string("mirror"))


def _variant(entry: Table, arguments: Mapping[str, Argument]) -> Variant:
    variant = entry.fill(
        Variant,
        status=_untried(entry),
        has=_has(entry, arguments),
        bootstrap=_bootstrap(entry),
    )
    if not NAME.fullmatch(variant.name):
        entry.fault("name", f"is {variant.name!r}; lower-case letters, digits, dots, dashes are needed")
    return variant


def _is_inside(path: Path, folder: Path) -> bool:
    """Tell whether a file of a layer is its own, or that of a layer beside it: what else a link of somebody else's led
    to, a key of the user's, would be in the image.
    """
    try:
        own, place = folder.resolve(), path.resolve().parent
    except (OSError, RuntimeError):  # links in a circle
        return False
    return place == own or (place.parent in {own.parent, folder.parent.resolve()} and (place / "layer.toml").is_file())


def _script(path: Path, table: Table, *, required: bool) -> str | None:
    if not path.exists():
        if required:
            table.faults.append(f"{path.name} is missing beside it")
        return None
    if not _is_inside(path, path.parent):
        table.faults.append(f"{path.name} is a link to a file outside {path.parent}")
        return None
    try:
        return read_text(path, SCRIPT_LIMIT_BYTES)
    except CatalogError as error:
        table.faults.append(f"{path.name} {error.what}")
        return None
