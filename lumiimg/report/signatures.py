"""`lumiimg log --signatures`: the messages that the log reader knows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lumiimg.nccl.vocabulary import vocabulary
from lumiimg.report.console import console, detail, evidence, headline, say


def signatures_to_json() -> dict[str, Any]:
    """Return what is printed of the knowledge base as JSON, most likely cause first."""
    patterns = {entry.id: {"pattern": entry.pattern, "example": entry.example} for entry in vocabulary().entries}
    signatures = vocabulary().signatures.values()
    return {
        "signatures": [asdict(signature) | patterns[signature.id] for signature in signatures],
        "return_codes": tuple(vocabulary().return_codes.values()),
    }


def print_signatures() -> None:
    """Print the knowledge base for a person."""
    out = console()
    examples = {entry.id: entry.example for entry in vocabulary().entries}
    troubles = len(vocabulary().signatures)
    headline(out, f"{len(examples)} kinds of messages, {troubles} of them troubles; --json has all")
    for signature in vocabulary().signatures.values():
        versions = f", {signature.versions}" if signature.versions else ""
        say(out, f"{signature.id}  [{signature.weight.value}{versions}]", style="bold")
        detail(out, signature.summary)
        evidence(out, examples[signature.id])
        detail(out, f"source: {signature.source} ({signature.date})", style="dim")
