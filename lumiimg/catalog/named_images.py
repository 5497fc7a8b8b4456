"""Images whose names say what they have: the next one of a family is a base on the day it appears.

`lumi-multitorch-u24r72f21m50t211-20260929_104918` has Ubuntu 24.04, ROCm 7.2, libfabric 2.1, MPICH 5.0 and torch 2.11.
How a family's names are read is `[named]` of its layer.toml: a regular expression, and what its groups mean.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from lumiimg.catalog.age import age_of
from lumiimg.decode import Text, refuse

_GROUP = re.compile(r"\{([a-z]\w*)\}", re.ASCII)
_MOST_FILES = 4096
_LONGEST_NAME = 256
_DATED = re.compile(r".*-(\d{8})(?:[-_]\d{6})?", re.ASCII)
LOCAL = "localimage"


class KnownImage(Struct, frozen=True, forbid_unknown_fields=True):
    """An image that was seen under such a name."""

    name: Text
    """Of its file, without `.sif`, or its tag."""
    date: dt.date
    """Of the image, ISO 8601."""
    source: Text
    """Where that is from."""


class ImageNames(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the images of a family are called; `{rocm}` and the like stand for groups of the patterns."""

    patterns: Annotated[tuple[re.Pattern[str], ...], Meta(min_length=1, description="a pattern at least")]
    """Of a file's name without `.sif`, of a tag, and of the name as a base; the groups `date` and `time` say when."""
    name: Text
    """As a base."""
    summary: Text
    has: Mapping[str, Text] = {}
    """Versions by component."""
    file: str | None = None
    """Where such an image lies on the machine that it is for."""
    tag: str | None = None
    """Where it is in a registry."""
    latest: str | None = None
    """The name that stands for the newest."""
    known: tuple[KnownImage, ...] = ()
    source: Text
    date: dt.date
    """When names were last looked at."""

    def __post_init__(self) -> None:
        groups = set.intersection(*({*pattern.groupindex} for pattern in self.patterns))
        texts = {"name": self.name, "summary": self.summary, "file": self.file or "", "tag": self.tag or ""}
        texts |= {f"has.{component}": text for component, text in self.has.items()}
        faults: dict[str, str] = {}
        for key, text in texts.items():
            if unknown := {*_GROUP.findall(text)} - groups:
                faults[key] = f"holds {{{min(unknown)}}}; groups of all patterns: {', '.join(sorted(groups))}"
            elif {"{", "}"} & {*_GROUP.sub("", text)}:
                faults[key] = f"is {text!r}: braces are for names like {{rocm}}"
        refuse(faults)

    @property
    def folder(self) -> Path:
        """The one below which all images of the family lie; the current one where no file is named."""
        return Path((self.file or "").partition("{")[0] + "x").parent

    def here(self) -> Iterator[Path]:
        """Yield what is called like an image of the family where those lie on their machine."""
        if self.file is not None and self.folder.is_dir():
            with contextlib.suppress(OSError):
                pattern = re.sub(r"(\{\w+\})+", "*", os.path.relpath(self.file, self.folder))
                yield from itertools.islice(self.folder.glob(pattern), _MOST_FILES)


class NamedImage(Struct, frozen=True):
    """What one name says."""

    name: str
    """As a base."""
    has: Mapping[str, str]
    """Versions by component."""
    summary: str
    age: str
    """Date and time, to be compared; empty where the name has none."""
    origins: tuple[tuple[str, str], ...]
    """Agent and place."""


def named_image(names: ImageNames, text: str) -> NamedImage | None:
    """Return what a name says: that of a base, of a file, or an image of the family's registry; None for any other."""
    repository = (names.tag or "").partition(":")[0]
    before, colon, tag = text.rpartition(":")
    if colon and before in {repository, repository.removeprefix("docker.io/")}:
        text = tag
    elif not colon and (text == Path(text).name or text.endswith(".sif")):
        text = Path(text).name.removesuffix(".sif")
    else:
        return None
    matches = (pattern.fullmatch(text) for pattern in names.patterns if len(text) <= _LONGEST_NAME)
    found = next(filter(None, matches), None)
    return _said(names, found.groupdict("")) if found else None


def _said(names: ImageNames, groups: Mapping[str, str]) -> NamedImage | None:
    """Return what the groups of a name say; None where its day is in no calendar: it would be the newest."""
    age = groups.get("date", "") + groups.get("time", "")
    try:
        day = dt.datetime.strptime(age, "%Y%m%d%H%M%S"[: 6 if len(age) == 8 else 12]) if age else None  # noqa: DTZ007
    except ValueError:
        return None
    origins = [(agent, text.format(**groups)) for agent, text in ((LOCAL, names.file), ("docker", names.tag)) if text]
    return NamedImage(
        names.name.format(**groups),
        {component: text.format(**groups) for component, text in names.has.items()},
        f"{names.summary.format(**groups)}{f', of {day.date()}' if day else ''}: by its name",
        age,
        tuple(origins),
    )


def newest_named(names: ImageNames, text: str) -> NamedImage | None:
    """Return the newest image of a family that a shorter name begins (or its word for the newest): here, else known."""
    link = names.folder / f"{names.latest}.sif"
    is_latest = names.latest is not None and text in {names.latest, link.name, str(link)}
    if is_latest and names.file and (image := named_image(names, Path(os.path.realpath(link)).name)) is not None:
        return image  # what the site itself calls so
    if not is_latest and not text.startswith(f"{names.name.partition('{')[0].rpartition('-')[0]}-"):
        return None
    called = [*(path.name for path in names.here()), *(known.name for known in names.known)]
    found = [image for name in called if (image := named_image(names, name)) is not None]
    fitting = [one for one in found if is_latest or re.match(rf"{re.escape(text)}[a-z-]", one.name)]
    return max(fitting, key=lambda one: one.age, default=None)


def newest_here(names: ImageNames) -> tuple[Path, ...]:
    """Return the images of a family that lie on this machine: of each release of ROCm the newest, the newest first."""
    newest: dict[str, tuple[str, Path]] = {}
    for path in names.here():
        image = named_image(names, path.name)
        if image is not None and path.is_file():
            rocm = image.has.get("rocm", "")
            newest[rocm] = max(newest.get(rocm, ("", path)), (image.age, path))
    return tuple(path for _, path in sorted(newest.values(), reverse=True))


def age_in_name(name: str) -> str | None:
    """Return the age of an image whose name ends in its day, where that counts as old. Raises BadInputError."""
    found = _DATED.fullmatch(name)
    try:
        return age_of(dt.date.fromisoformat(found[1])) if found else None
    except ValueError:
        return None


def completed(has: Mapping[str, str], siblings: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return what an image has with what follows from it: of the distribution glibc and Python, of ROCm its RCCL.

    `siblings` are what other bases have.
    """
    full = dict(has)
    for other in siblings:
        if other.get("os") == has.get("os") is not None:
            full |= {key: other[key] for key in ("glibc", "python") if key in other and key not in full}
        if _series(other.get("rocm")) == _series(has.get("rocm")) is not None and "rccl" in other:
            full.setdefault("rccl", other["rccl"])
    return full


def _series(version: str | None) -> tuple[str, ...] | None:
    return tuple(version.split(".")[:2]) if version else None


def disagreements(says: Mapping[str, str], has: Mapping[str, str]) -> Iterator[str]:
    """Yield in what a name and the files of an image are of two minds."""
    for component, said in says.items():
        seen = has.get(component)
        if seen is not None and seen.partition("+")[0] != said and not seen.startswith(f"{said}."):
            yield f"its name says {component} {said}, and its files have {seen}"
