"""Releases of a layer: the rows of its layer.toml, the rule for those without a row, and the templates in both.

In a template `{NAME}` stands for the value of an argument, or of a fact (docs/extend/layer.md).
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from lumiimg.catalog.needs import Need, version_of
from lumiimg.core.decode import AnyText, Text, matching, refuse

PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(\[[a-z0-9,._-]{1,99}\])?==[0-9][A-Za-z0-9.+!_-]{0,63}")
_Pin = Annotated[str, matching(PIN.pattern, "a distribution in one version, such as 'torch==2.9.1+rocm6.4',")]
_Project = Annotated[str, matching(r"[a-z0-9]+(-[a-z0-9]+)*", "a project as PEP 503 writes it, such as 'flash-attn',")]
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
METADATA = "METADATA"
"""The metadata of a wheel, as the name of a file that a fact is read from."""
PROJECT, FILE = "project", "file"
"""The name of the project, and that of the file, as the names of such files."""
_ARGUMENT = "an argument of this layer"
_NET_APIS, _NET_API = frozenset({"net-api", "net-api-oldest"}), re.compile(r"[0-9]{1,2}")


def expand(template: str, values: Mapping[str, str]) -> str:
    """Replace `{NAME}` by its value."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template) if "{" in template else template


def placeholders(template: str) -> list[str]:
    """Return the names in a template."""
    return _PLACEHOLDER.findall(template)


def unknown_placeholder(template: str, names: Collection[str], what: str = _ARGUMENT) -> str | None:
    """Return what is wrong with a template that contains an unknown name; None if it contains only known ones."""
    found = next((name for name in placeholders(template) if name not in names), None) if "{" in template else None
    known = ", ".join(f"{{{one}}}" for one in names) or "none"
    return None if found is None else f"contains {{{found}}}, which is not {what}; known: {known}"


def faults_of_versions(has: Mapping[str, str], arguments: Collection[str]) -> dict[str, str | None]:
    """Return what is wrong with versions by component, in a layer that has these arguments; None if nothing is."""
    what = "the number of an API of RCCL's net plugins is needed: '12'"
    return {
        f"has.{name}": f"is {text!r}; {what}"
        if name in _NET_APIS and not _NET_API.fullmatch(text)
        else unknown_placeholder(text, arguments)
        for name, text in has.items()
    }


class Release(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One version of what a layer installs, with what only this version needs and has."""

    version: Text
    """Its version."""
    date: dt.date | None = None
    """When it was uploaded, ISO 8601; null if the index does not say."""
    requires: tuple[Need, ...] = ()
    """What must be below it, as `name>=1.2`."""
    expects: tuple[Need, ...] = ()
    """What its own project builds it with: another version is refused, and an unknown one is a doubt."""
    has: Mapping[str, Text] = {}
    """Versions of components that it provides, by component."""
    arguments: Mapping[str, AnyText] = {}
    """The values that it sets for the layer's arguments."""
    wheels: tuple[_Pin, ...] = ()
    """Python distributions, each pinned: `torch==2.9.1+rocm6.4`."""
    indexes: tuple[str, ...] = ()
    """Indexes to search for them, each project in the first that has it; none: where their requirements are."""
    beside: tuple[_Project, ...] = ()
    """Projects taken from the same indexes if these have them, in the versions that the pinned ones require."""
    without: tuple[str, ...] = ()
    """Python distributions that are left out, even if others require them."""
    unused: tuple[str, ...] = ()
    """Sources of the layer that it is not built from."""
    doubts: tuple[str, ...] = ()
    """Doubts from reading it, each a clause."""
    source: Text
    """What was read."""
    read: dt.date | None = None
    """The day on which it was read, ISO 8601."""
    derived: str | None = None
    """The release whose facts were used for it, because its own could not be read."""

    @property
    def own_torch(self) -> str | None:
        """The version of torch among its wheels; None if there is none."""
        return dict(self._pins()).get("torch")

    def mismatched_version(self, layer: str) -> str | None:
        """Return the version of the layer itself that its texts state, if that is not a build of this release."""
        versions = filter(None, (self.has.get(layer), dict(self._pins()).get(layer)))
        return next((version for version in versions if not _is_release(version, self.version)), None)

    @property
    def is_unlisted(self) -> bool:
        """Whether it has no row in a file: it was read, or derived."""
        return self.read is not None or self.derived is not None

    def _pins(self) -> Iterator[tuple[str, str]]:
        """Yield (project, in the spelling of PEP 503, version) for each wheel that is pinned."""
        for pin in self.wheels:
            name, _, version = pin.partition("==")
            yield canonicalize_name(name.partition("[")[0]), version

    def faults(self, arguments: Collection[str]) -> dict[str, str | None]:
        """Return what is wrong with it in a layer that has these arguments, by key; None if nothing is."""
        unknown = self.arguments.keys() - {*arguments}
        unknown_arguments = {f"arguments.{name}": f"is not {_ARGUMENT}" for name in unknown}
        return faults_of_versions(self.has, arguments) | unknown_arguments | self._contradictions()

    def _contradictions(self) -> dict[str, str | None]:
        """Return the contradictions that no image can satisfy: the reasons, by the key that names the version."""
        found: dict[str, str | None] = {}
        pins: dict[str, str] = {}
        for name, version in self._pins():
            if pins.setdefault(name, version) != version:
                found["wheels"] = f"pins {name} to {pins[name]} and to {version}"
            if name in self.has and "{" not in self.has[name] and not _is_release(version, self.has[name]):
                found[f"has.{name}"] = f"is {self.has[name]!r}, but wheels pins {name} to {version}"
        wanted: dict[str, SpecifierSet] = {}
        for need in (*self.requires, *self.expects):
            both = wanted.get(need.component, SpecifierSet()) & need.versions
            wanted[need.component] = both
            if not _is_possible(both):
                found["requires"] = f"asks for {Need(need.component, both)}, which matches no version"
            elif (pinned := pins.get(need.component)) and not need.holds_for(pinned):
                found["requires"] = f"asks for {need}, but wheels pins {need.component} to {pinned}"
        return found


def _is_release(version: str, release: str) -> bool:
    """Return whether a version is a build of a release: 0.9.2.post1 of 0.9.2, 2.9.1+rocm6.4 of 2.9.1."""
    build, wanted = version_of(version), version_of(release)
    return build is None or wanted is None or build == wanted or build.base_version == wanted.public


def _is_possible(versions: SpecifierSet) -> bool:
    """Return whether any version fits: one that is named, the next after it, or one below all."""
    named = {text for spec in versions if (text := spec.version.removesuffix(".*"))}
    tried = {"0", *named, *(f"{text.partition('+')[0]}.1" for text in named)}
    return any(versions.contains(text, prereleases=True) for text in tried if version_of(text))


class IndexFact(Struct, frozen=True, forbid_unknown_fields=True):
    """A value that is read from a file of a release."""

    name: Annotated[str, matching(r"[a-z][a-z0-9-]{0,31}", "a name of lower-case letters, digits and dashes")]
    """Its name in the templates of the table."""
    files: tuple[str, ...]
    """Files to read, of which the first with a value counts: paths in a source archive, METADATA, project or file."""
    pattern: re.Pattern[str]
    """Its first group is the value; of several versions the oldest counts."""

    def __post_init__(self) -> None:
        refuse({"pattern": self.pattern.groups != 1 and "should have one group, which is the value"})


class IndexRule(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The rule by which a release without a row is read. Texts may contain {VERSION}, {FOUND} and each fact."""

    read: Literal["metadata", "sdist", "local-version"]
    projects: Annotated[tuple[str, ...], Meta(min_length=1, description="one project at least")]
    """Projects of a package index. Each that has the version makes one release."""
    range: SpecifierSet
    """The versions that can be read this way."""
    facts: tuple[IndexFact, ...] = field(name="fact", default=())
    requires: tuple[str, ...] = ()
    expects: tuple[str, ...] = ()
    has: Mapping[str, Text] = {}
    arguments: Mapping[str, Text] = {}
    wheels: tuple[str, ...] = ()
    companions: tuple[str, ...] = ()
    """Projects of the same index, each a fact: the newest version whose METADATA requires exactly this one."""
    index: str | None = None
    """The index of the project; None: the general one."""
    indexes: tuple[str, ...] = ()
    """Indexes to search for its wheels."""
    source: Text
    date: dt.date
    """When the rule was last checked."""

    def faults(self, arguments: Collection[str]) -> dict[str, str | None]:
        """Return what is wrong with the rule of a layer that has these arguments, by key; None if nothing is."""
        facts = ("VERSION", "FOUND", *(fact.name for fact in self.facts), *self.companions)
        lists = {"requires": self.requires, "expects": self.expects, "wheels": self.wheels, "indexes": self.indexes}
        texts = {f"{key}[{at}]": text for key, several in lists.items() for at, text in enumerate(several)}
        texts |= {f"has.{name}": text for name, text in self.has.items()}
        texts |= {f"arguments.{name}": text for name, text in self.arguments.items()}
        found = {key: unknown_placeholder(text, facts, "a fact of this table") for key, text in texts.items()}
        return found | {f"arguments.{name}": f"is not {_ARGUMENT}" for name in self.arguments.keys() - {*arguments}}
