"""Images whose names say what they have: the next one of a family is a base on the day it appears.

`lumi-multitorch-u24r72f21m50t211-20260929_104918` has Ubuntu 24.04, ROCm 7.2, libfabric 2.1, MPICH 5.0 and torch 2.11.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.catalog.age import age_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lumiimg.catalog.toml_table import Table

_FIELD = re.compile(r"\{([a-z]+)\}")
_FIELDS = frozenset({"ubuntu", "rocm", "libfabric", "mpich", "python", "torch", "vllm", "date", "time"})
_DOTTED = r"\d{1,4}(?:\.\d{1,5}){0,3}"
_PATTERNS = {"date": r"\d{8}", "time": r"\d{6}"}
_TITLES = {
    "rocm": "ROCm",
    "libfabric": "libfabric",
    "mpich": "MPICH",
    "torch": "torch",
    "vllm": "vLLM",
    "python": "Python",
}
_COMPONENTS = ("rocm", "python", "libfabric", "torch", "vllm")
_MOST_FILES = 4096
_DATED = re.compile(r".*-(\d{8})(?:[-_]\d{6})?", re.ASCII)
LOCAL = "localimage"


@dataclass(frozen=True, slots=True)
class KnownImage:
    """An image that was seen under such a name."""

    name: str
    """Of its file, without `.sif`, or its tag."""
    date: dt.date
    """Of the image, ISO 8601."""
    source: str
    """Where that is from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageNames:
    """How the images of a family are called; `{rocm}` and the like stand for versions."""

    name: str
    """As a base."""
    forms: tuple[str, ...]
    """As a file, without `.sif`, or as a tag."""
    packed: bool
    """Whether versions are digits alone: 72 is 7.2, 211 is 2.11."""
    file: str | None
    """Where such an image lies on the machine that it is for."""
    tag: str | None
    """Where it is in a registry."""
    latest: str | None
    """The name that stands for the newest."""
    known: tuple[KnownImage, ...]
    source: str


@dataclass(frozen=True, slots=True)
class NamedImage:
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


def read_names(entry: Table) -> ImageNames:
    """Read `[named]` of a family of bases."""
    known = tuple(entry_.fill(KnownImage) for entry_ in entry.tables("known"))
    names = entry.fill(ImageNames, packed=entry.flag("packed"), known=known)
    for key, texts in (("name", (names.name,)), ("forms", names.forms), ("file", (names.file,)), ("tag", (names.tag,))):
        for text in filter(None, texts):
            if unknown := {*_FIELD.findall(text)} - _FIELDS:
                entry.fault(key, f"holds {{{min(unknown)}}}; known: {', '.join(sorted(_FIELDS))}")
            if {"{", "}"} & {*_FIELD.sub("", text)}:
                entry.fault(key, f"is {text!r}: braces are for names like {{rocm}}")
    return names


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
    for form in (names.name, *names.forms):
        if (found := _pattern(form, packed=names.packed).fullmatch(text)) is not None and _is_day(found.groupdict()):
            return _said(names, found.groupdict())
    return None


def _is_day(values: Mapping[str, str]) -> bool:
    """Whether date and time are those of a calendar: else what was never made would be the newest."""
    try:
        dt.datetime.strptime(f"{values.get('date', '20000101')}{values.get('time', '000000')}", "%Y%m%d%H%M%S")  # noqa: DTZ007
    except ValueError:
        return False
    return True


def newest_named(names: ImageNames, text: str) -> NamedImage | None:
    """Return the newest image of a family that a shorter name begins (or its word for the newest): here, else known."""
    if names.file is not None and names.latest is not None:
        # as a file of the site: its own path, or that alone
        file = _place(names.file)[0] / f"{names.latest}.sif"
        text = names.latest if text in {str(file), file.name} else text
    if text == names.latest and names.file is not None:
        target = os.path.realpath(_place(names.file)[0] / f"{text}.sif")
        if (image := named_image(names, Path(target).name)) is not None:
            return image  # what the site itself calls so
    if text != names.latest and not text.startswith(f"{names.name.partition('{')[0].rpartition('-')[0]}-"):
        return None
    found = [image for name in _names(names) if (image := named_image(names, name)) is not None]
    fitting = [one for one in found if text == names.latest or re.match(rf"{re.escape(text)}[a-z-]", one.name)]
    return max(fitting, key=lambda one: one.age, default=None)


def newest_here(names: ImageNames) -> tuple[Path, ...]:
    """Return the images of a family that lie on this machine: of each release of ROCm the newest, the newest first."""
    newest: dict[str, tuple[str, Path]] = {}
    for path in _files(names):
        image = named_image(names, path.name)
        if image is not None and path.is_file():
            rocm = image.has.get("rocm", "")
            newest[rocm] = max(newest.get(rocm, ("", path)), (image.age, path))
    return tuple(path for _, path in sorted(newest.values(), reverse=True))


def _names(names: ImageNames) -> Iterator[str]:
    """Yield the names of images that are here, or are known."""
    yield from (path.name.removesuffix(".sif") for path in _files(names))
    yield from (known.name for known in names.known)


def _files(names: ImageNames) -> Iterator[Path]:
    """Yield what is called like an image of the family where those lie on their machine."""
    folder, pattern = _place(names.file) if names.file else (None, "")
    if folder is not None and folder.is_dir():
        with contextlib.suppress(OSError):
            yield from itertools.islice(folder.glob(pattern), _MOST_FILES)


def _place(file: str) -> tuple[Path, str]:
    """Return the folder below which all images of a family lie, and the pattern of their paths from there."""
    parts = Path(file).parts
    fixed = next((number for number, part in enumerate(parts) if "{" in part), len(parts) - 1)
    return Path(*parts[:fixed]), "/".join(_FIELD.sub("*", part) for part in parts[fixed:])


def _pattern(form: str, *, packed: bool) -> re.Pattern[str]:
    usual = r"\d{1,4}" if packed else _DOTTED
    parts = _FIELD.split(form)
    texts = [re.escape(part) for part in parts[::2]]
    fields = [f"(?P<{name}>{_PATTERNS.get(name, usual)})" for name in parts[1::2]]
    return re.compile("".join(text + field for text, field in zip(texts, [*fields, ""], strict=True)), re.ASCII)


def _said(names: ImageNames, values: Mapping[str, str]) -> NamedImage:
    versions = {
        key: unpacked(key, value) if names.packed and key not in _PATTERNS else value for key, value in values.items()
    }
    has = {key: versions[key] for key in _COMPONENTS if key in versions}
    if "ubuntu" in versions:
        has["os"] = f"Ubuntu {versions['ubuntu']}"
    titles = [f"{title} {versions[key]}" for key, title in _TITLES.items() if key in versions]
    day = f", of {_day(values['date'])}" if "date" in values else ""
    system = f", Ubuntu {versions['ubuntu']}" if "ubuntu" in versions else ""
    origins = [(agent, text.format(**values)) for agent, text in ((LOCAL, names.file), ("docker", names.tag)) if text]
    return NamedImage(
        names.name.format(**values),
        has,
        f"{', '.join(titles)}{system}{day}: by its name",
        f"{values.get('date', '')}{values.get('time', '')}",
        tuple(origins),
    )


def unpacked(key: str, digits: str) -> str:
    """Return a version of digits alone: 72 is 7.2, 211 is 2.11, and 24 of Ubuntu 24.04.

    Of three digits of ROCm that begin with 1, the first two are the major release: there was no ROCm 1.10.
    """
    if key == "ubuntu":
        return f"{digits}.04"
    major = 2 if key == "rocm" and len(digits) == 3 and digits[0] == "1" else 1
    return f"{digits[:major]}.{digits[major:] or '0'}"


def age_in_name(name: str) -> str | None:
    """Return the age of an image whose name ends in its day, where that counts as old. Raises BadInputError."""
    found = _DATED.fullmatch(name)
    try:
        return age_of(dt.date.fromisoformat(_day(found[1]))) if found else None
    except ValueError:
        return None


def _day(text: str) -> str:
    return f"{text[:4]}-{text[4:6]}-{text[6:]}"


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
