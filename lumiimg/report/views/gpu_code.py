"""What a GPU makes of the code of an image: for `check` by component, for `show --gpu` a table to be pasted."""

from __future__ import annotations

import posixpath
from collections import Counter
from typing import TYPE_CHECKING

from lumiimg.errors import printable
from lumiimg.findings import Severity
from lumiimg.gpu.rule import CodeForm, GpuFit
from lumiimg.report.document import Document, Lines, Paragraph, Row, Section, Shown, Table
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.check.static.gpu_code import GpuAccount
    from lumiimg.gpu.target import GpuTarget
    from lumiimg.resolve.gpu_code import CodeFile, GpuCode, ImageGpuCode
    from lumiimg.resolve.gpu_verdict import GpuVerdict

_WORDS = {
    GpuFit.RUNS: "yes",
    GpuFit.XNACK: "with HSA_XNACK=1",
    GpuFit.PART: "in part",
    GpuFit.NO: "no",
    GpuFit.UNKNOWN: "not known",
}
_MARKS = {GpuFit.RUNS: "✓", GpuFit.PART: "✓ in part", GpuFit.XNACK: "✗ without HSA_XNACK=1", GpuFit.UNKNOWN: "?"}
_SEVERITIES = {GpuFit.RUNS: Severity.OK, GpuFit.PART: Severity.OK, GpuFit.UNKNOWN: Severity.UNKNOWN}


def account_summary(account: GpuAccount) -> str:
    """Return a line: each component with its mark."""
    parts = ", ".join(f"{part.component} {_mark(part)}" for part in account.parts)
    return f"GPU code for {account.processor}: {parts or 'none was found'}"


def account_section(account: GpuAccount | None) -> Section:
    """Return the components with what the GPU takes of each; empty where there is no account."""
    if account is None:
        return Section("GPU code", ())
    caption = f"Whether {account.gpu}, the GPU of {account.machine}, takes the code of each component"
    table = Table(("component", account.processor, "why", "where"), tuple(map(_row, account.parts)), caption)
    return Section("GPU code", (table,), Shown.PAGE)


def _mark(part: GpuVerdict) -> str:
    return _MARKS.get(part.fit) or f"{part.has} ✗"


def _row(part: GpuVerdict) -> Row:
    severity = Severity.PROBLEM if part.stands_against else _SEVERITIES.get(part.fit, Severity.INFO)
    why = [] if severity is Severity.OK else [part.why or part.without or ""]
    why += [] if part.needed else ["beside the path: not every job calls it"]
    more = f", and {count(len(part.paths) - 1, 'place')} more" if len(part.paths) > 1 else ""
    return Row((part.component, _mark(part), "; ".join(filter(None, why)), f"{part.paths[0]}{more}"), severity)


def gpu_code_document(found: ImageGpuCode) -> Document:
    """Return for which GPUs an image has code, and whether the one that was asked about takes it."""
    code, gpu = found.code, found.gpu
    lost = (Paragraph(f"{one.path}: cannot be read: {one.why}", Severity.UNKNOWN) for one in code.unreadable)
    table = Lines(tuple(_table(code.files, gpu)) if code.files else (), is_pasted=True, what="components")
    return Document(
        command="show",
        subject=found.image,
        is_named=True,
        is_list=True,
        severity=Severity.UNKNOWN if code.unreadable else Severity.INFO,
        sentence=_answer(code, gpu),
        sections=(Section("GPU code", (table,)), Section("Not read", lost)),
    )


def _answer(code: GpuCode, gpu: GpuTarget | None) -> str:
    if not code.files:
        return "no GPU code that can be read" if code.unreadable else "no GPU code of AMD's"
    found = Counter(file.fit for file in code.files if file.fit)
    fits = ", ".join(f"{_WORDS[fit]} {found[fit]}" for fit in GpuFit if fit in found)
    return f"GPU code in {count(len(code.files), 'place')}" + (f"; runs on {gpu.processor}: {fits}" if gpu else "")


def _table(files: Sequence[CodeFile], gpu: GpuTarget | None) -> Iterator[str]:
    processors = sorted(
        {each.processor for file in files for each in _targets(file)}, key=lambda name: (len(name), name)
    )
    rows = [["component", *([f"runs on {gpu.processor}"] if gpu else []), *processors, "where"]]
    alike: dict[tuple[str, ...], list[str]] = {}
    for file in files:
        fit = [_WORDS[file.fit]] if file.fit else []
        key = (file.component, *fit, *(_cell(file, name) for name in processors))
        alike.setdefault(key, []).append(file.path)
    rows += [[*key, _where(paths)] for key, paths in alike.items()]
    cells = [[printable(cell).replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, row in enumerate(cells):
        yield f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |"
        if not number:
            yield f"|{'|'.join('-' * (width + 2) for width in widths)}|"


def _where(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{posixpath.commonpath(paths)} ({count(len(paths), 'place')} in it)"


def _targets(file: CodeFile) -> set[GpuTarget]:
    return {target for each in file.bundles for target in each.targets}


def _cell(file: CodeFile, processor: str) -> str:
    """Return what a file has for a processor: in which modes, and in how many of the bundles where not in each."""
    targets = [target for target in sorted(_targets(file), key=str) if target.processor == processor]
    if not targets:
        return ""
    having = sum(each.count for each in file.bundles if any(target.processor == processor for target in each.targets))
    total = sum(each.count for each in file.bundles)
    amount = f"{having} of {total}" if file.form is CodeForm.BUNDLES and having < total else "✓"
    modes = [":".join(target.modes) or "any" for target in targets]
    return amount if modes == ["any"] else f"{amount} {', '.join(modes)}"
