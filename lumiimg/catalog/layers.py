"""Bases and layers: the folder `layers/<name>/` as a validated value (docs/extend/layer.md)."""

from __future__ import annotations

import datetime as dt
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Struct, field, structs
from packaging.requirements import InvalidRequirement, Requirement

from lumiimg.catalog.folders import shipped_layers
from lumiimg.catalog.needs import Need
from lumiimg.catalog.releases import IndexRule, Release, expand, faults_of_versions, unknown_placeholder
from lumiimg.core.decode import AnyText, DecodeError, Sha256, Text, matching, read_text, read_toml, refuse

Reach = Literal["documented", "resolved", "rehearsed", "built", "run"]
Status = Reach | Literal["read", "derived"]
"""How far something was tried (ledger.py), or how what is known of it was found."""
NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,79}")
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
OWN_FILES = ("layer.toml", "post.sh", "test.sh")
"""What the folder of a layer has under these names is never a file for its script, or shared."""
SHA256 = re.compile(r"[0-9a-f]{64}")
SCRIPT_LIMIT_BYTES = 256 * 1024
AGENTS = ("debootstrap", "docker", "localimage")
# What bash, the engine and this writer use themselves.
RESERVED = frozenset(
    {"PATH", "HOME", "IFS", "MAKEFLAGS", "LAYER_FILES", "KEPT", "LD_LIBRARY_PATH", "LD_PRELOAD", "BASH_ENV"}
)
_Name = Annotated[str, matching(NAME.pattern, "a name of lower-case letters, digits, dots and dashes")]
_File = Annotated[
    str, matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", "a plain file name of letters, digits, dots and dashes")
]
_Variable = Annotated[str, matching(r"[A-Za-z_][A-Za-z0-9_]*", "a name of a variable")]
_Package = Annotated[str, matching(r"[a-z0-9][a-z0-9+.-]{0,99}", "a name of a package")]
"""Of Debian; debootstrap takes no option for one."""
_SUITE = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
"""debootstrap runs its script of that name: no path, no option."""
_Agent = Annotated[str, matching("|".join(AGENTS), f"one of {', '.join(AGENTS)}")]
_ArgumentName = Annotated[
    str,
    matching(
        rf"(?!SOURCE_|(?:{'|'.join(sorted(RESERVED))})\Z){VARIABLE.pattern}",
        "a name of a variable like VERSION, and not one that the build uses,",
    ),
]


class Argument(Struct, frozen=True, forbid_unknown_fields=True):
    """A value that the user can set, and that post.sh gets as a variable."""

    default: AnyText
    """Value where none is given."""
    help: Text
    """What it does."""
    pattern: re.Pattern[str] | None = None


class SourceEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[sources.NAME]` of a layer.toml. `{NAME}` in url, file and key stands for an argument."""

    url: str = ""
    """Where it is fetched; may hold the layer's arguments."""
    file: Text
    key: str = ""
    sha256: Mapping[str, Sha256] = {}
    """In hexadecimal, by the version that it is of."""
    optional: bool = False
    """Whether it has no address, and is there only where the user gives it."""
    requirements: tuple[str, ...] = ()
    """Files in it that say what it requires of Python, by their paths below its top folder."""
    source: Text

    def __post_init__(self) -> None:
        if not self.optional:
            is_address = self.url.startswith(("https://", "http://"))
            what = f"is {self.url!r}; it should begin with https://"
            refuse({"url": not is_address and what, "key": not self.key and "is missing (a string)"})


class LayerSource(SourceEntry, frozen=True, kw_only=True):
    """An archive that a layer is built from."""

    name: str

    @property
    def variable(self) -> str:
        """How post.sh gets the path."""
        return "SOURCE_" + re.sub(r"[.-]", "_", self.name).upper()


class Bootstrap(Struct, frozen=True, forbid_unknown_fields=True):
    """One way to get a base: the header of its definition file."""

    agent: _Agent
    """`debootstrap`, `docker`, `localimage`; of an image of the user's any that reads it."""
    origin: Text = field(name="from")
    """The suite, the image reference, or the path of a file."""
    mirror: str | None = None
    """Name of the mirror that debootstrap needs (`debian`)."""

    def __post_init__(self) -> None:
        is_suite = self.agent != "debootstrap" or _SUITE.fullmatch(self.origin)
        refuse({"from": not is_suite and f"is {self.origin!r}; a name of a suite is needed"})


class Variant(Bootstrap, frozen=True, kw_only=True):
    """A member of a family of bases: the same in all but its image and versions."""

    name: _Name
    summary: Text
    has: Mapping[str, Text] = {}


class ImageNames(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the images of a family are called; in the texts `{rocm}` stands for the group of the pattern."""

    pattern: re.Pattern[str]
    """Of what an image is called as a base (catalogue.py): `-` is there for `/`, `:` and `_`."""
    summary: Text
    has: Mapping[str, Text] = {}
    """Versions by component."""
    file: Annotated[str, matching(r"/[^*]+", "an absolute path")] | None = None
    """Where such an image lies on the machine that it is for."""
    tag: str | None = None
    """Where it is in a registry."""
    known: tuple[_Name, ...] = ()
    """Images that were seen, as bases."""
    source: Text
    date: dt.date
    """When names were last looked at."""

    def __post_init__(self) -> None:
        texts = {"summary": self.summary, "file": self.file or "", "tag": self.tag or ""}
        texts |= {f"has.{component}": text for component, text in self.has.items()}
        groups = self.pattern.groupindex
        refuse({key: unknown_placeholder(text, groups, "a group of the pattern") for key, text in texts.items()})


class KnownTrouble(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A combination that is known to give trouble."""

    given: tuple[Need, ...] = ()
    """All of these must hold of the stack."""
    unless: tuple[Need, ...] = ()
    """And none of these."""
    outcome: Literal["refused", "warning"]
    """Whether it cannot work at all."""
    rule: Literal["glibc-gate", "driver-window", "plugin-abi", "fabric", "torch", "layers"]
    """By which a refusal is named."""
    because: Text
    source: Text

    @property
    def refused(self) -> bool:
        """Whether it cannot work at all."""
        return self.outcome == "refused"


class LayerEnvironment(Struct, frozen=True, forbid_unknown_fields=True):
    """What a layer does to the environment of the image; `{NAME}` stands for an argument."""

    set: Mapping[_Variable, Text] = {}
    """Variables that are set."""
    prepend: Mapping[_Variable, Text] = {}
    """Variables that something is put in front of."""


class LayerFacts(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a layer.toml says, and a layer has as it stands."""

    summary: Text
    """One sentence."""
    source: Text
    """Where its recipe comes from."""
    date: dt.date
    """When that was looked up, ISO 8601."""
    requires: tuple[Need, ...] = ()
    """What must be below it. As `name>=1.2`."""
    provides: tuple[str, ...] = ()
    """Components that it brings without a version."""
    has: Mapping[str, Text] = {}
    """Versions of components that it brings, by component; `{NAME}` stands for an argument."""
    conflicts: tuple[str, ...] = ()
    """Layers that it cannot be built with."""
    releases: tuple[Release, ...] = field(name="release", default=())
    """The one to prefer first; empty where there is only the one that the arguments name."""
    unlisted: IndexRule | None = None
    """How others are read."""
    troubles: tuple[KnownTrouble, ...] = field(name="trouble", default=())
    from_source: Literal["minutes", "hours"] | None = None
    """How long it takes where the release has no wheels; null: not known."""
    packages: tuple[str, ...] = ()
    """What post.sh needs of a Python package index where the release has no wheels: requirements, as in PEP 508."""
    arguments: Mapping[_ArgumentName, Argument] = {}
    """By name (`--arg LAYER.NAME=VALUE`)."""
    environment: LayerEnvironment = LayerEnvironment()
    """What it does to the environment of the image."""
    bootstraps: tuple[Bootstrap, ...] = field(name="bootstrap", default=())
    variants: tuple[Variant, ...] = field(name="variant", default=())
    """Of a family of bases: its members, which have names of their own."""
    named: ImageNames | None = None
    """Of a family of bases: how images are called that are members without a word here."""
    include: tuple[_Package, ...] = ()
    """Of a base: packages that debootstrap brings along, and that post.sh has as INCLUDE."""


class _LayerFile(LayerFacts, frozen=True, kw_only=True):
    """A layer.toml, checked for all that its keys say together."""

    kind: Literal["base", "layer"]
    files: tuple[_File, ...] = ()
    lib: tuple[_File, ...] = ()
    sources: Mapping[_Name, SourceEntry] = {}

    def __post_init__(self) -> None:
        faults: dict[str, str | None] = {}
        if self.kind == "layer":
            of_bases = (("bootstrap", self.bootstraps), ("variant", self.variants), ("include", self.include))
            what = "is not known in a layer: it is for bases"
            faults = {key: what for key, there in (*of_bases, ("named", self.named)) if there}
        elif bool(self.bootstraps) == bool(self.variants):
            faults["kind"] = "is 'base': a base needs [[bootstrap]], or, as a family of bases, [[variant]]"
        if twice := next((name for name in self.lib if name in {*self.files, *OWN_FILES}), None):
            faults["lib"] = f"names {twice!r}, which is a file of the layer's own"
        if own := next((name for name in self.files if name in OWN_FILES), None):
            faults["files"] = f"names {own!r}, which each layer has of its own"
        refuse(faults | self._faults_of_texts() | self._faults_of_releases())

    def _faults_of_texts(self) -> dict[str, str | None]:
        """Return what is wrong with texts in which {NAME} stands for an argument, by key; None where nothing is."""
        faults = faults_of_versions(self.has, self.arguments)
        for at, variant in enumerate(self.variants):
            of_variant = faults_of_versions(variant.has, self.arguments)
            faults |= {f"variant[{at}].{key}": what for key, what in of_variant.items()}
        faults |= {f"packages[{at}]": self._fault_of_requirement(text) for at, text in enumerate(self.packages)}
        texts = {f"environment.set.{name}": text for name, text in self.environment.set.items()}
        texts |= {f"environment.prepend.{name}": text for name, text in self.environment.prepend.items()}
        for name, source in self.sources.items():
            texts |= {f"sources.{name}.{key}": getattr(source, key) for key in ("url", "file", "key")}
        return faults | {key: unknown_placeholder(text, self.arguments) for key, text in texts.items()}

    def _fault_of_requirement(self, text: str) -> str | None:
        if unknown := unknown_placeholder(text, self.arguments):
            return unknown
        try:
            Requirement(expand(text, dict.fromkeys(self.arguments, "1")))
        except InvalidRequirement:
            return f"is {text!r}, which is not a valid requirement"
        return None

    def _faults_of_releases(self) -> dict[str, str | None]:
        faults: dict[str, str | None] = {}
        for at, row in enumerate(self.releases):
            faults |= {f"release[{at}].{key}": what for key, what in row.faults(self.arguments).items()}
            if unknown := {*row.unused} - self.sources.keys():
                faults[f"release[{at}].unused"] = f"names {min(unknown)!r}, which is not a source of this layer"
        of_rule = self.unlisted.faults(self.arguments) if self.unlisted else {}
        return faults | {f"unlisted.{key}": what for key, what in of_rule.items()}


class Layer(LayerFacts, frozen=True, kw_only=True):
    """A base (it has bootstraps) or a layer (it has none)."""

    name: str
    """Name in the catalogue, or the image."""
    folder: Path
    """Where its files are."""
    staged: Mapping[str, Path] = {}
    """Files that post.sh finds in $LAYER_FILES, by their names there: its own, and those that it shares with others."""
    sources: tuple[LayerSource, ...] = ()
    by_name: bool = False
    """Whether what it has was read in its name alone."""
    post: str = ""
    test: str | None = None
    is_foreign: bool = False
    """An image of somebody's, read: it is in no catalogue, and `folder` is its own path."""

    @property
    def kind(self) -> Literal["base", "layer"]:
        """What it is."""
        return "base" if self.is_base else "layer"

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

    def has_of(self, release: Release | None) -> dict[str, str]:
        """Return the versions of components that it brings in a release; they may name arguments."""
        return {**self.has, **(release.has if release else {})}

    def member(self, name: str) -> Layer:
        """Return the base that is the member `name` of this family. Raises KeyError if there is none."""
        found = {variant.name: variant for variant in self.variants}[name]
        return structs.replace(
            self,
            name=name,
            summary=found.summary,
            has={**self.has, **found.has},
            bootstraps=(Bootstrap(found.agent, found.origin, found.mirror),),
            variants=(),
            named=None,
        )


def read_layer(folder: Path) -> Layer:
    """Read and validate `folder/layer.toml` and the scripts beside it.

    Raises DecodeError, which names the file, every wrong key, and what is allowed there.
    """
    file = read_toml(folder / "layer.toml", _LayerFile)
    staged = {**{name: folder / name for name in file.files}, **{name: _shared(folder, name) for name in file.lib}}
    test = folder / "test.sh"
    scripts = [folder / "post.sh", *([test] if os.path.lexists(test) else [])]
    faults = [fault for place in (*scripts, *staged.values()) if (fault := _file_fault(place, folder))]
    if not NAME.fullmatch(folder.name):
        faults.append(f"its folder's name {folder.name!r} should be lower-case letters, digits, dots, dashes")
    for at, row in enumerate(file.releases):
        if other := row.other_than_named(folder.name):
            faults.append(f"key 'release[{at}].version' is {row.version!r}, and it has {folder.name} {other}")
    if faults:
        raise DecodeError("; ".join(faults), where=str(folder / "layer.toml"))
    post, *tests = (read_text(script, SCRIPT_LIMIT_BYTES) for script in scripts)
    facts = {name: getattr(file, name) for name in LayerFacts.__struct_fields__}
    return Layer(
        **facts,
        name=folder.name,
        folder=folder,
        staged=dict(sorted(staged.items())),
        sources=tuple(LayerSource(name=name, **structs.asdict(one)) for name, one in file.sources.items()),
        post=post,
        test=tests[0] if tests else None,
    )


def own_values(layer: Layer, release: Release | None) -> dict[str, str]:
    """Return the values of a layer's arguments where nobody gives others: the release's, then the layer's."""
    values = {name: argument.default for name, argument in layer.arguments.items()}
    if release is not None:
        values |= {"VERSION": release.version, **release.arguments}
    return {name: value for name, value in values.items() if name in layer.arguments}


def _shared(folder: Path, name: str) -> Path:
    """Return a file that layers share: of the folder `lib` beside the layer, or of the one that comes with lumiimg."""
    own_library = folder.parent / "lib" / name
    return own_library if os.path.lexists(own_library) else shipped_layers() / "lib" / name


def _file_fault(place: Path, folder: Path) -> str | None:
    """Return why a file is none of a layer. A link could lead to a file of the user's, which would be in the image."""
    what = place.name if place.parent == folder else f"{place.name} of `lib`"
    if place.parent != folder and place.parent.is_symlink():
        return f"{what} is reached by a link: {place.parent}"
    try:
        mode = place.lstat().st_mode
    except OSError:
        return f"{what} is not there: {place}"
    if stat.S_ISLNK(mode):
        return f"{what} is a link: copy the file, or name it in `lib`, where layers share it"
    return None if stat.S_ISREG(mode) else f"{what} is not a file"
