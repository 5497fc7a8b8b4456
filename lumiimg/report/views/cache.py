"""Answers about the cache: what is in it, what was removed, why something is missing."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from lumiimg.core.findings import Advice, Remedy, Severity
from lumiimg.core.text import count, duration, size
from lumiimg.report.document import Document, Item, Lines, Paragraph, Section, facts_section, severity_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.build.cache import CacheContent, CacheRemoved, CacheVerified
    from lumiimg.build.keys import CacheLookup, Difference

_SHORT = 12
"""Number of digits of a key that are enough to distinguish it."""


def entries_document(content: CacheContent) -> Document:
    """Return the list of what is in the cache."""
    rows = [
        (entry.key[:_SHORT], f"{size(entry.size_bytes)}, built in {duration(entry.seconds)}: {', '.join(entry.layers)}")
        for entry in sorted(content.entries, key=lambda entry: entry.layers)
    ]
    rows += [
        (layer.key[:_SHORT], f"{size(layer.size_bytes)}, unpacked: a layer of an OCI image, sha256:{layer.key}")
        for layer in content.unpacked
    ]
    rows += [
        (image.key[:_SHORT], f"{size(image.size_bytes)}, downloaded, an image that was read: sha256:{image.key}")
        for image in content.images
    ]
    number = _counted(len(content.entries), len(content.unpacked), len(content.images))
    sentence = f"{number}, {size(content.size_bytes)}, in {content.cache}"
    sections = (facts_section("Entries", rows),)
    return Document("cache ls", str(content.cache), sentence, sections=sections, is_list=True)


def faults_document(verified: CacheVerified) -> Document:
    """Return the entries that have changed since they were stored."""
    items = tuple(Item(Severity.PROBLEM, f"{one.key[:_SHORT]}: {one.fault}") for one in verified.faults)
    return Document(
        "cache verify",
        "the cache",
        f"{count(verified.checked, 'layer')} read; {count(len(items), 'fault')}",
        severity_of(verified.exit_code),
        Advice(next="lumiimg cache prune" if items else None),
        sections=(Section("Faults", items),),
        is_list=True,
    )


def removed_document(gone: CacheRemoved) -> Document:
    """Return the answer of `cache prune` and `cache rm`."""
    number = _counted(len(gone.removed), len(gone.unpacked), len(gone.images))
    return Document("cache", "the cache", f"removed {number}, {size(gone.freed_bytes)}")


def why_document(answer: CacheLookup) -> Document:
    """Return why a layer is not in the cache, or that it is cached."""
    entry, nearest = answer.entry, answer.nearest
    if entry is not None:
        took = f"{size(entry.size_bytes)}; it took {duration(entry.seconds)}"
        what = f"in the cache ({entry.key[:_SHORT]}, {took})"
    elif nearest is None:
        what = "never built with this cache"
    else:
        what = f"would be built again; compared with the cached one ({nearest.key[:_SHORT]}):"
    differences = (Section("", _difference(one, answer.below)) for one in answer.differences)
    return Document(
        "build --why",
        ", ".join(answer.layers),
        what,
        severity_of(answer.exit_code),
        sections=(*differences, Section("The base", _age(answer))),
        is_named=True,
    )


def _difference(difference: Difference, below: str | None) -> Iterator[Paragraph | Lines]:
    words = difference.part
    if words == "content":
        words = "the layer below it came out differently, or is no longer cached"
        words += f": lumiimg build --why {below}, with the same options, says why" if below is not None else ""
    yield Paragraph(words)
    if difference.lines:
        yield Lines(difference.lines)


def _age(answer: CacheLookup) -> Iterator[Item]:
    if answer.base is not None:
        made = dt.datetime.fromtimestamp(answer.base.made_s, dt.UTC)
        text = f"its base {', '.join(answer.base.layers)} was built on {made:%Y-%m-%d}"
        again = Remedy("to build it with today's packages, give `lumiimg build` the same options and --fresh")
        yield Item(Severity.INFO, text, remedies=(again,))


def _counted(layers: int, unpacked: int, images: int) -> str:
    others = (count(unpacked, "unpacked layer") if unpacked else "", count(images, "image") if images else "")
    return " and ".join([count(layers, "layer"), *filter(None, others)])
