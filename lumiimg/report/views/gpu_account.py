"""What the GPU of a machine makes of the code of an image, component by component."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.findings import Severity
from lumiimg.gpu.rule import GpuFit
from lumiimg.report.document import Item, Paragraph, Section, Shown
from lumiimg.wording import count

if TYPE_CHECKING:
    from lumiimg.check.static.gpu_code import GpuAccount
    from lumiimg.resolve.gpu_verdict import GpuVerdict

_SEVERITIES = {GpuFit.RUNS: Severity.OK, GpuFit.PART: Severity.OK, GpuFit.UNKNOWN: Severity.UNKNOWN}


def account_summary(account: GpuAccount) -> str:
    """Return a line: each component with its mark."""
    parts = ", ".join(f"{part.component} {mark_of(part)}" for part in account.parts)
    return f"GPU code for {account.processor}: {parts or 'none was found'}"


def account_section(account: GpuAccount | None) -> Section:
    """Return the components with what the GPU takes of each; empty where there is no account."""
    if account is None:
        return Section("GPU code", (), is_headed=True)
    which = f"Whether {account.gpu}, the GPU of {account.machine}, takes the code of each component."
    if not account.parts:
        return Section("GPU code", (Paragraph("No GPU code of AMD's was found."),), Shown.PAGE)
    items = (_item(part, account.processor) for part in account.parts)
    return Section("GPU code", (Paragraph(which, quiet=True), *items), Shown.PAGE)


def mark_of(part: GpuVerdict) -> str:
    """Return `✓`, or in short what else there is of a component."""
    words = {GpuFit.RUNS: "✓", GpuFit.PART: "✓ in part", GpuFit.XNACK: "✗ without HSA_XNACK=1", GpuFit.UNKNOWN: "?"}
    return words.get(part.fit) or f"{part.has} ✗"


def _item(part: GpuVerdict, processor: str) -> Item:
    severity = Severity.PROBLEM if part.stands_against else _SEVERITIES.get(part.fit, Severity.INFO)
    notes = []
    if part.fit not in {GpuFit.RUNS, GpuFit.PART}:
        notes.append(part.why or part.without)
    if not part.needed:
        notes.append("beside the path: not every job calls it")
    where = (
        part.paths[0] if len(part.paths) == 1 else f"{part.paths[0]}, and {count(len(part.paths) - 1, 'place')} more"
    )
    words = f"{processor} {mark_of(part)}" if part.fit in _SEVERITIES else mark_of(part)
    return Item(severity, f"{part.component}: {words}", notes=(*filter(None, notes), where))
