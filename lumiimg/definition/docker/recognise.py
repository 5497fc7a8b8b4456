"""Find the parts of a Dockerfile that the catalogue already provides: its base, and software in layers.

The catalogue shows what a layer includes (its name, its wheels, its archives), so a user's own layers count. The text
of RUN is searched, not parsed: `git clone` and `pip install` are found as words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from lumiimg.core.decode import DecodeError
from lumiimg.core.errors import BadInputError
from lumiimg.core.redact import is_secret_name, redact
from lumiimg.definition.docker.read import FILE_LIMIT_BYTES, resolved, variables, with_values
from lumiimg.fetch.mirrors import Mirrors
from lumiimg.fetch.registry import parse_reference

if TYPE_CHECKING:
    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.layers import Layer
    from lumiimg.definition.docker.read import Instruction

VALUE_LIMIT = 200
"""Maximum number of characters of a value that are substituted for its name in searched text."""
_ALIASES = {
    # Software that a layer includes under a name that neither its wheels nor its archives have.
    "triton": "pytorch",
    "vision": "pytorch",
    "audio": "pytorch",
    "sgl-kernel": "sglang",
    "flash-attention": "flash-attn",
    "amd-aiter": "aiter",
}
_TOKEN = re.compile(r"&&|\|\||[;|&\n()]|[^\s;&|()\"'`]+")
_BREAKS = frozenset({"&&", "||", ";", "|", "&", "\n", "(", ")"})
_PIP = re.compile(r"(?:.*[/_$])?pip[0-9.]*\}?", re.IGNORECASE)
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?(?:([=<>~!]=?=?)(.*))?")
_WHEEL = re.compile(r"(?:.*/)?([A-Za-z0-9][A-Za-z0-9._]*)-([0-9][A-Za-z0-9._+!%]*)-.*\.whl")
_REPOSITORY = re.compile(
    r"(?:git\+)?(?:https?|git|ssh)://[^/\s]+/[^/\s]+/([A-Za-z0-9._-]+?)(?:\.git)?(?:@([^@/\s#]+))?(?:#.*)?"
)
_ARCHIVE = re.compile(r"https://github\.com/[^/]+/([^/]+)/(?:archive|releases)/")
_TAG_VERSION = re.compile(r"[a-z]*(\d{1,9}(?:\.\d{1,9})*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Base:
    """The image that the target starts from, and its counterpart in the catalogue."""

    image: str
    """The image in FROM."""
    name: str | None
    """Name in the catalogue; null if it has none."""
    near: tuple[str, ...]
    """Catalogue bases with other tags of the same repository, the nearest version first."""
    has: frozenset[str] = frozenset()
    """Components of the base in the catalogue."""

    @property
    def option(self) -> str:
        """The value for `--base`."""
        return self.name or f"docker://{self.image.removeprefix('docker.io/').removeprefix('library/')}"


@dataclass(frozen=True, slots=True)
class KnownSoftware:
    """Software that a layer of the catalogue includes."""

    layer: str
    """Name of the layer in the catalogue."""
    version: str | None
    """Version that the Dockerfile requests, if the catalogue has it; else null."""
    in_base: bool
    """Whether the base includes it."""
    what: str
    """The recognised command."""
    stage: str
    """Stage of the command."""
    line: int
    """Line of its instruction, counted from 1."""


def known_values(
    path: str, steps: Iterable[Instruction], given: Mapping[str, str], before: Mapping[str, str]
) -> dict[str, str]:
    """Return the values of ARG and ENV in any stage, besides those of `before`; secrets are left out.

    Raises BadInputError if values that contain each other become too long.
    """
    values, size = dict(before), 0
    pairs = ((step.line, *pair) for step in steps if step.keyword in {"ARG", "ENV"} for pair in step.pairs or ())
    for line, name, text in pairs:
        if not is_secret_name(name) and (text := given.get(name, text)) is not None:
            size += sum(len(values.get(other, "")) for other in variables(text))
            if size > FILE_LIMIT_BYTES:
                what = f"values that contain others exceed {FILE_LIMIT_BYTES} characters in total"
                raise BadInputError(what, where=f"{path}:{line}", hint="shorten them")
            values[name] = resolved(text.strip("'\""), values)
    return values


def recognise(
    image: str | None, steps: Iterable[Instruction], values: Mapping[str, str], catalogue: Catalogue
) -> tuple[Base | None, tuple[KnownSoftware, ...]]:
    """Return the base and the software that the catalogue has. Raises BadInputError for an invalid base reference."""
    entries: list[Layer] = []
    for name in catalogue.layer_names():
        with suppress(DecodeError):  # a broken folder of the user must not prevent the answer about others
            entries.append(catalogue.entry(name))
    base = None if image is None else _base(image, [entry for entry in entries if entry.is_base])
    values = {name: value[:VALUE_LIMIT] for name, value in values.items()}
    texts = [(step, with_values(step.whole, values)) for step in steps]
    known = _known(texts, [entry for entry in entries if not entry.is_base], base.has if base else frozenset())
    return base, tuple(known)


def _base(image: str, bases: Iterable[Layer]) -> Base:
    none = Mirrors({})
    wanted = parse_reference(image, none)
    found: Layer | None = None
    near: list[tuple[int, str]] = []
    for base in bases:
        for have in (parse_reference(way.origin, none) for way in base.bootstraps if way.agent == "docker"):
            if str(have) == str(wanted):
                found = base
            elif have.repository == wanted.repository:
                near.append((_version(have.tag), base.name))
    near.sort(reverse=True)  # the newer of two equally near; without a requested version, the newest first
    if asked := _version(wanted.tag):
        near.sort(key=lambda entry: abs(entry[0] - asked))
    has = frozenset({*found.has, *found.provides}) if found else frozenset()
    return Base(str(wanted), found.name if found else None, tuple(name for _, name in near), has)


def _version(tag: str | None) -> int:
    """Return the number that a tag begins with: 6002004 of `6.2.4-complete`, 7002000 of `rocm7.2_py3.10`; else 0."""
    found = _TAG_VERSION.match(tag or "")
    numbers = [int(number) for number in found[1].split(".")[:3]] if found else []
    return sum(number * 1000**place for number, place in zip(numbers, (2, 1, 0), strict=False))


def _known(
    texts: Iterable[tuple[Instruction, str]], layers: Iterable[Layer], has: frozenset[str]
) -> Iterator[KnownSoftware]:
    by_name = _layers_by_software(layers)
    seen = set()
    for step, text in texts:
        for what, name, version in _software_in(text) if step.keyword in {"ONBUILD", "RUN"} else ():
            plain_name = canonicalize_name(name)
            layer = by_name.get(_ALIASES.get(plain_name, plain_name))
            if layer is None or (layer.name, what) in seen:
                continue
            seen.add((layer.name, what))
            plain = version.removeprefix("v").partition("+")[0] if version else None
            # The version of a part (triton, torchvision) differs from that of the layer.
            is_whole = plain_name in {layer.name, "torch"} or plain_name not in _ALIASES
            chosen = plain if is_whole and plain in {release.version for release in layer.releases} else None
            in_base = bool({layer.name, *layer.provides} & has)
            yield KnownSoftware(layer.name, chosen, in_base, redact(what), step.stage, step.line)


def _layers_by_software(layers: Iterable[Layer]) -> dict[str, Layer]:
    """Return layers by the names of all software that they include; a name of several layers is left out unless one
    of them has or provides that name.
    """
    found: dict[str, list[Layer]] = {}
    for layer in layers:
        names = {layer.name}
        names |= {pin.partition("==")[0].partition("[")[0] for release in layer.releases for pin in release.wheels}
        names |= {match[1] for source in layer.sources if (match := _ARCHIVE.match(source.url))}
        for name in set(map(canonicalize_name, names)):
            found.setdefault(name, []).append(layer)
    owners = {name: [one for one in entries if name in {one.name, *one.provides}] for name, entries in found.items()}
    return {name: (owners[name] or entries)[0] for name, entries in found.items() if owners[name] or len(entries) == 1}


def _software_in(text: str) -> Iterator[tuple[str, str, str | None]]:
    """Yield, for each piece of software in a step, the command that gets it, its name, and its version."""
    for is_break, group in groupby(_TOKEN.findall(text), _BREAKS.__contains__):
        words = [] if is_break else list(group)
        if "git" in words and "clone" in words:
            branch = re.search(r" (?:-b|--branch)[ =]([^\s$]+)", " ".join(words))
            for match in filter(None, map(_REPOSITORY.fullmatch, words)):
                at = f" at {branch[1]}" if branch else ""
                yield f"git clone {match[0]}{at}", match[1], branch[1] if branch else None
        elif "install" in words and any(map(_PIP.fullmatch, words[: words.index("install")])):
            for word in words[words.index("install") + 1 :]:
                if (file := _REPOSITORY.fullmatch(word) or _WHEEL.fullmatch(word)) is not None:
                    yield f"pip install {word}", file[1], file[2]
                elif (wanted := _REQUIREMENT.fullmatch(word)) is not None:
                    yield f"pip install {word}", wanted[1], wanted[3] if wanted[2] == "==" else None
