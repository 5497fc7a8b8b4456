"""What `adapt` says of an image that it builds on, and where it adds nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.check.static.commands import concluded
from lumiimg.findings import Severity
from lumiimg.report.document import Document, Item
from lumiimg.report.views.build import doubts_section

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.catalog.layers import Layer
    from lumiimg.check.adaptation import NothingAdded
    from lumiimg.findings import Finding
    from lumiimg.resolve.lock import Lock

_SHOWN = ("os", "glibc", "python", "rocm", "rccl", "torch", "vllm", "sglang", "net-api")
"""Of what the image has."""


def has_item(image: str, base: Layer) -> Item:
    """Return what is known of an image."""
    has = ", ".join(f"{name} {base.has[name]}" for name in _SHOWN if name in base.has)
    return Item(Severity.INFO, f"{image} has {has or 'nothing that is known here'}")


def objection_items(findings: Iterable[Finding], image: str, site: str, note: str = "") -> Iterator[Item]:
    """Yield what stands in the way, with what to do on this site."""
    for finding in findings:
        remedies = concluded(finding.remedy, image, site)
        yield Item(finding.severity, f"{finding.summary}{note}", tag=finding.id, remedies=remedies)


def nothing_document(image: str, result: NothingAdded, lock: Lock) -> Document:
    """Return what is said where nothing is built."""
    sentence, sections = f"{result.sentence}: nothing was built", (doubts_section(lock),)
    return Document("adapt", image, sentence, result.answer.severity, sections=sections)
