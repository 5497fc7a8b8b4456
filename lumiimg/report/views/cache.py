"""What is said of the cache: what is in it, what went, why something is not."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from lumiimg.findings import Advice, Remedy, Severity
from lumiimg.report.document import Document, Facts, Item, Lines, Paragraph, Section
from lumiimg.wording import count, duration, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.build.cache_miss import CacheLookup, Difference
    from lumiimg.build.cache_upkeep import CacheContent, CacheRemoved, CacheVerified

_SHORT = 12
"""Digits of a key that tell it from others."""


def entries_document(content: CacheContent) -> Document:
    """Return what is in the cache."""
    rows = [
        (entry.key[:_SHORT], f"{size(entry.size_bytes)}, built in {duration(entry.seconds)}: {', '.join(entry.layers)}")
        for entry in sorted(content.entries, key=lambda entry: entry.layers)
    ]
    rows += [
        (image.key[:_SHORT], f"{size(image.size_bytes)}, unpacked: {image.image or 'what of cannot be read'}")
        for image in content.unpacked
    ]
    number = _both(len(content.entries), len(content.unpacked))
    return Document(
        command="cache ls",
        subject=str(content.cache),
        is_list=True,
        sentence=f"{number}, {size(content.size_bytes)}, in {content.cache}",
        sections=(Section("Entries", (Facts(tuple(rows)),)),),
    )


def faults_document(verified: CacheVerified) -> Document:
    """Return which entries are not what they were."""
    items = tuple(Item(Severity.PROBLEM, f"{one.key[:_SHORT]}: {one.fault}") for one in verified.faults)
    return Document(
        command="cache verify",
        subject="the cache",
        is_list=True,
        severity=Severity.PROBLEM if items else Severity.OK,
        sentence=f"{count(verified.checked, 'layer')} read; {count(len(items), 'fault')}",
        advice=Advice(next="lumiimg cache prune" if items else None),
        sections=(Section("Faults", items),),
    )


def removed_document(gone: CacheRemoved) -> Document:
    """Return what was removed."""
    what = f"removed {_both(len(gone.removed), len(gone.unpacked))}, {size(gone.freed_bytes)}"
    return Document("cache", "the cache", what)


def why_document(answer: CacheLookup, below: str | None) -> Document:
    """Return why a layer is not in the cache, or that it is; `below`: the layer that it stands on."""
    name, entry, nearest = ", ".join(answer.layers), answer.entry, answer.nearest
    if entry is not None:
        details = f"{entry.key[:_SHORT]}, {size(entry.size_bytes)}; it took {duration(entry.seconds)}"
        severity, what = Severity.OK, f"in the cache ({details})"
    elif nearest is None:
        severity, what = Severity.PROBLEM, "never built with this cache"
    else:
        severity = Severity.PROBLEM
        what = f"would be built again; beside the one that is there ({nearest.key[:_SHORT]}):"
    return Document(
        command="build --why",
        subject=name,
        is_named=True,
        severity=severity,
        sentence=what,
        sections=(
            *(Section("", _difference(one, below)) for one in answer.differences),
            Section("The base", _age(answer)),
        ),
    )


def _difference(difference: Difference, below: str | None) -> Iterator[Paragraph | Lines]:
    words = {"content": "what is below it came out differently, or is not there any more"}
    if below is not None:
        again = f"lumiimg build --why {below}, with the same options, says why"
        words["parent"] = f"what is below it ({below}): {again}"
    yield Paragraph(words.get(difference.part, difference.part))
    if difference.lines:
        yield Lines(difference.lines)


def _age(answer: CacheLookup) -> Iterator[Item]:
    if answer.base is not None:
        made = dt.datetime.fromtimestamp(answer.base.made_s, dt.UTC)
        days = count((dt.datetime.now(dt.UTC) - made).days, "day")
        text = f"its base {', '.join(answer.base.layers)} is that of {made:%Y-%m-%d}, {days} old"
        again = Remedy("to have it again as it is today, with the same options", "lumiimg build --fresh")
        yield Item(Severity.INFO, text, remedies=(again,))


def _both(layers: int, images: int) -> str:
    return count(layers, "layer") + (f" and {count(images, 'unpacked image')}" if images else "")
