"""Answer of `show --gpu`: the GPUs for which an image has code, as a table for pasting."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from lumiimg.core.errors import one_safe_line
from lumiimg.core.findings import Severity
from lumiimg.core.text import count
from lumiimg.gpu import GpuFit
from lumiimg.inventory.gpu_code import CodeForm, processors_of
from lumiimg.report.document import Document, Item, Lines, Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.inventory.gpu_code import CodeFile, ImageGpuCode


def gpu_code_document(found: ImageGpuCode) -> Document:
    """Return the GPUs for which an image has code, and whether the requested one can run it."""
    lost = (Item(Severity.UNKNOWN, f"{one.path}: cannot be read: {one.why}") for one in found.code.unreadable)
    table = Lines(tuple(_table(found)) if found.code.files else (), is_pasted=True)
    return Document(
        "show",
        found.image,
        _sentence(found),
        Severity.UNKNOWN if found.code.unreadable else Severity.INFO,
        sections=(Section("GPU code", (table,)), Section("Not read", lost)),
        is_named=True,
        is_list=True,
    )


def _sentence(found: ImageGpuCode) -> str:
    """Return how much GPU code there is, and how much of it runs."""
    files = found.code.files
    if not files:
        return "no GPU code that can be read" if found.code.unreadable else "no GPU code of AMD's"
    places = f"GPU code in {count(len(files), 'place')}"
    fits = [file.fit for file in files]
    fitting = ", ".join(f"{fit.in_words} {fits.count(fit)}" for fit in GpuFit if fit in fits)
    return f"{places}; runs on {found.gpu.processor}: {fitting}" if found.gpu else places


def _table(found: ImageGpuCode) -> Iterator[str]:
    """Yield the lines of a Markdown table; equivalent files share a row."""
    processors = processors_of(found.code.files)
    rows = [["component", *([f"runs on {found.gpu.processor}"] if found.gpu else []), *processors, "where"]]
    alike: dict[tuple[str, ...], list[str]] = {}
    for file in found.code.files:
        fit = [file.fit.in_words] if file.fit else []
        alike.setdefault((file.component, *fit, *(_modes_of(file, each) for each in processors)), []).append(file.path)
    rows += [[*key, _where(paths)] for key, paths in alike.items()]
    cells = [[one_safe_line(cell).replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    head, *others = (
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |" for row in cells
    )
    yield from (head, f"|{'|'.join('-' * (width + 2) for width in widths)}|", *others)


def _modes_of(file: CodeFile, processor: str) -> str:
    """Return the modes in which a file has code for a processor, and in how many of its bundles if not in all."""
    modes = [":".join(target.modes) or "any" for target in file.targets if target.processor == processor]
    if not modes:
        return ""
    has = [each.count for each in file.bundles if any(target.processor == processor for target in each.targets)]
    having, total = sum(has), sum(each.count for each in file.bundles)
    amount = f"{having} of {total}" if file.form is CodeForm.BUNDLES and having < total else "✓"
    return amount if modes == ["any"] else f"{amount} {', '.join(modes)}"


def _where(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{posixpath.commonpath(paths)} ({count(len(paths), 'place')} in it)"
