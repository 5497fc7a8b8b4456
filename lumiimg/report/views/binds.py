"""What `bind`, `module`, `job` and `explain` report about a host's binds: why none loads, and what is in doubt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.check.static.files import doubts_of_binds
from lumiimg.core.findings import Advice, Answer, Severity, first_command
from lumiimg.fabric.path import Fabric
from lumiimg.report.document import Document, Item, Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.check.static.files import HostFit


def refusals_document(fit: HostFit, command: str) -> Document:
    """Return the answer that no set of binds loads: why, attempt by attempt, and what to do."""
    manifest = fit.manifest
    if manifest is None:
        what = next((finding.summary for finding in fit.static.findings), "there is no loader in it")
    elif manifest.host_has_fabric:
        what = f"no set of binds of {fit.host} loads"
    else:
        what = _no_fabric(fit)
    ways = Item(Severity.INFO, "Ways out, the nearest first; one is enough", remedies=fit.remedies, any_one=True)
    return Document(
        command=command,
        subject=fit.image,
        is_named=True,
        severity=fit.answer.severity,
        sentence=f"{'REFUSED' if fit.answer is Answer.NO else 'CANNOT TELL'}: {what}",
        advice=Advice(None, first_command(fit.remedies[:1])),
        sections=(Section("What was tried", (*attempts(fit), *([ways] if fit.remedies else []))),),
    )


def attempts(fit: HostFit) -> Iterator[Item]:
    """Yield each attempt at binds that does not load."""
    if fit.manifest is None or fit.manifest.fabric is not Fabric.NONE:
        return
    severity = Severity.PROBLEM
    if not fit.manifest.host_has_fabric:
        severity = Severity.UNKNOWN
        yield Item(severity, _no_fabric(fit))
    for refusal in fit.manifest.refusals:
        yield Item(severity, f"{refusal.attempt}: {refusal}", evidence=(refusal.words,))


def doubts(fit: HostFit) -> tuple[Item, ...]:
    """Return what may prevent RCCL from using the binds, with remedies; and differences from the image's manifest."""
    return tuple(Item(severity, text, remedies=remedies) for severity, text, remedies in doubts_of_binds(fit))


def _no_fabric(fit: HostFit) -> str:
    return f"the snapshot of {fit.host} has no libfabric with the cxi provider"
