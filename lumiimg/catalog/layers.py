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
"""How far something was tried (ledger.py), or how the facts about it were obtained."""
NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,79}")
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
OWN_FILES = ("layer.toml", "post.sh", "test.sh")
"""Files with these names in the folder of a layer are never files for its script, and never shared."""
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
"""A Debian package; debootstrap cannot mistake its name for an option."""
_SUITE = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
"""Name of a suite: debootstrap runs its script of that name, so it must not be a path or an option."""
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
    """Value if none is given."""
    help: Text
    """What it does."""
    pattern: re.Pattern[str] | None = None


class SourceEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[sources.NAME]` of a layer.toml. `{NAME}` in url, file and key stands for an argument."""

    url: str = ""
    """URL that it is fetched from; may contain the layer's arguments."""
    file: Text
    key: str = ""
    sha256: Mapping[str, Sha256] = {}
    """Hexadecimal digests by the version that they belong to."""
    optional: bool = False
    """Whether it has no URL, and is available only if the user supplies it."""
    requirements: tuple[str, ...] = ()
    """Files in it that list its Python requirements, as paths below its top folder."""
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
        """Variable in which post.sh gets the path."""
        return "SOURCE_" + re.sub(r"[.-]", "_", self.name).upper()


class Bootstrap(Struct, frozen=True, forbid_unknown_fields=True):
    """One way to get a base: the header of its definition file."""

    agent: _Agent
    """`debootstrap`, `docker`, `localimage`; for an image of the user's, any that reads it."""
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
    """How the images of a family are named; in the texts `{rocm}` stands for the group of the pattern."""

    pattern: re.Pattern[str]
    """Pattern of an image's name as a base (catalogue.py), in which `-` replaces `/`, `:` and `_`."""
    summary: Text
    has: Mapping[str, Text] = {}
    """Versions by component."""
    file: Annotated[str, matching(r"/[^*]+", "an absolute path")] | None = None
    """Path of such an image on the machine that it is for."""
    tag: str | None = None
    """Its place in a registry."""
    known: tuple[_Name, ...] = ()
    """Images that were seen, by their names as bases."""
    source: Text
    date: dt.date
    """When names were last checked."""

    def __post_init__(self) -> None:
        texts = {"summary": self.summary, "file": self.file or "", "tag": self.tag or ""}
        texts |= {f"has.{component}": text for component, text in self.has.items()}
        groups = self.pattern.groupindex
        refuse({key: unknown_placeholder(text, groups, "a group of the pattern") for key, text in texts.items()})


class KnownTrouble(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A combination that is known to cause trouble."""

    given: tuple[Need, ...] = ()
    """Needs that the stack must all satisfy."""
    unless: tuple[Need, ...] = ()
    """Needs of which the stack must satisfy none."""
    outcome: Literal["refused", "warning"]
    """`refused` if it cannot work at all."""
    rule: Literal["glibc-gate", "driver-window", "plugin-abi", "fabric", "torch", "layers"]
    """The rule that a refusal names."""
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
    """Variables that a value is prepended to."""


class LayerFacts(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The facts in a layer.toml that a layer has unchanged."""

    summary: Text
    """One sentence."""
    source: Text
    """Where its recipe comes from."""
    date: dt.date
    """When that was looked up, ISO 8601."""
    requires: tuple[Need, ...] = ()
    """What must be below it, as `name>=1.2`."""
    provides: tuple[str, ...] = ()
    """Components that it provides without a version."""
    has: Mapping[str, Text] = {}
    """Versions of components that it provides, by component; `{NAME}` stands for an argument."""
    conflicts: tuple[str, ...] = ()
    """Layers that it cannot be built with."""
    releases: tuple[Release, ...] = field(name="release", default=())
    """Releases, preferred one first; empty if there is only the one that the arguments name."""
    unlisted: IndexRule | None = None
    """How releases that are not listed are read."""
    troubles: tuple[KnownTrouble, ...] = field(name="trouble", default=())
    from_source: Literal["minutes", "hours"] | None = None
    """How long it takes to build if the release has no wheels; null: not known."""
    packages: tuple[str, ...] = ()
    """Requirements (PEP 508) of post.sh that come from a Python package index if the release has no wheels."""
    arguments: Mapping[_ArgumentName, Argument] = {}
    """Arguments by name (`--arg LAYER.NAME=VALUE`)."""
    environment: LayerEnvironment = LayerEnvironment()
    """Its changes to the environment of the image."""
    bootstraps: tuple[Bootstrap, ...] = field(name="bootstrap", default=())
    variants: tuple[Variant, ...] = field(name="variant", default=())
    """For a family of bases: its members, which have names of their own."""
    named: ImageNames | None = None
    """For a family of bases: the names of images that are members without being listed."""
    include: tuple[_Package, ...] = ()
    """For a base: packages that debootstrap installs too, and that post.sh gets as INCLUDE."""


class _LayerFile(LayerFacts, frozen=True, kw_only=True):
    """A layer.toml, with the checks that concern several of its keys."""

    kind: Literal["base", "layer"]
    files: tuple[_File, ...] = ()
    lib: tuple[_File, ...] = ()
    sources: Mapping[_Name, SourceEntry] = {}

    def __post_init__(self) -> None:
        faults: dict[str, str | None] = {}
        if self.kind == "layer":
            of_bases = (("bootstrap", self.bootstraps), ("variant", self.variants), ("include", self.include))
            what = "is not allowed in a layer: it is for bases"
            faults = {key: what for key, there in (*of_bases, ("named", self.named)) if there}
        elif bool(self.bootstraps) == bool(self.variants):
            faults["kind"] = "is 'base': a base needs [[bootstrap]], or, as a family of bases, [[variant]]"
        if twice := next((name for name in self.lib if name in {*self.files, *OWN_FILES}), None):
            faults["lib"] = f"names {twice!r}, which is a file of the layer's own"
        if own := next((name for name in self.files if name in OWN_FILES), None):
            faults["files"] = f"names {own!r}, which every layer has as its own file"
        refuse(faults | self._faults_of_texts() | self._faults_of_releases())

    def _faults_of_texts(self) -> dict[str, str | None]:
        """Return what is wrong with texts in which {NAME} stands for an argument, by key; None if nothing is."""
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
    """Files that post.sh finds in $LAYER_FILES, by their names there: its own, and those shared with other layers."""
    sources: tuple[LayerSource, ...] = ()
    by_name: bool = False
    """Whether its components were derived from its name alone."""
    post: str = ""
    test: str | None = None
    is_foreign: bool = False
    """Whether it is a third-party image that was read: it is not in a catalogue, and `folder` is its own path."""

    @property
    def kind(self) -> Literal["base", "layer"]:
        """What it is."""
        return "base" if self.is_base else "layer"

    @property
    def is_base(self) -> bool:
        """Whether an image can start from it, or from a member of its family."""
        return bool(self.bootstraps or self.variants)

    def sources_of(self, release: Release | None) -> tuple[LayerSource, ...]:
        """Return the archives that a release is built from; all if there is no release."""
        return tuple(one for one in self.sources if release is None or one.name not in release.unused)

    def needs_of(self, release: Release | None) -> tuple[Need, ...]:
        """Return what must be below it, in a release."""
        return (*self.requires, *(release.requires if release else ()))

    def has_of(self, release: Release | None) -> dict[str, str]:
        """Return the versions of components that it provides in a release; they may contain arguments."""
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
        faults.append(f"its folder's name {folder.name!r} should consist of lower-case letters, digits, dots, dashes")
    for at, row in enumerate(file.releases):
        if other := row.mismatched_version(folder.name):
            faults.append(f"key 'release[{at}].version' is {row.version!r}, but it has {folder.name} {other}")
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
    """Return the default values of a layer's arguments: the release's, then the layer's."""
    values = {name: argument.default for name, argument in layer.arguments.items()}
    if release is not None:
        values |= {"VERSION": release.version, **release.arguments}
    return {name: value for name, value in values.items() if name in layer.arguments}


def _shared(folder: Path, name: str) -> Path:
    """Return a file that layers share: from the folder `lib` beside the layer, or from the one included in lumiimg."""
    own_library = folder.parent / "lib" / name
    return own_library if os.path.lexists(own_library) else shipped_layers() / "lib" / name


def _file_fault(place: Path, folder: Path) -> str | None:
    """Return why a file cannot belong to a layer. A link could put a file of the user into the image."""
    what = place.name if place.parent == folder else f"{place.name} of `lib`"
    if place.parent != folder and place.parent.is_symlink():
        return f"{what} is reached through a link: {place.parent}"
    try:
        mode = place.lstat().st_mode
    except OSError:
        return f"{what} does not exist: {place}"
    if stat.S_ISLNK(mode):
        return f"{what} is a link: copy the file, or name it in `lib`, which layers share"
    return None if stat.S_ISREG(mode) else f"{what} is not a file"
