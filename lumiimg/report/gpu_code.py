"""What `show --gpu` prints: a table in Markdown, to be pasted into an issue."""

from __future__ import annotations

import posixpath
from collections import Counter
from typing import TYPE_CHECKING

from lumiimg.errors import printable
from lumiimg.gpu.rule import CodeForm, GpuFit
from lumiimg.report.console import console, detail, headline, marked, print_json, verbatim
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.check.static.gpu_code import GpuAccount
    from lumiimg.gpu.target import GpuTarget
    from lumiimg.resolve.gpu_code import CodeFile, GpuCode
    from lumiimg.resolve.gpu_verdict import GpuVerdict

_SHOWN = 20
_WORDS = {
    GpuFit.RUNS: "yes",
    GpuFit.XNACK: "with HSA_XNACK=1",
    GpuFit.PART: "in part",
    GpuFit.NO: "no",
    GpuFit.UNKNOWN: "not known",
}


def print_gpu_code(image: str, code: GpuCode, gpu: GpuTarget | None, *, as_json: bool) -> None:
    """Print for which GPUs an image has code, and whether `gpu` takes it."""
    if as_json:
        print_json("show-gpu", image=image, gpu=gpu, code=code)
        return
    out = console()
    headline(out, f"{image}: {_answer(code, gpu)}", "unknown" if code.unreadable else "info")
    if code.files:
        out.print()
        for line in _table(code.files, gpu):
            verbatim(out, line)
        out.print()
    for lost in code.unreadable[:_SHOWN]:
        marked(out, "unknown", f"{lost.path}: cannot be read: {lost.why}")
    if len(code.unreadable) > _SHOWN:
        detail(out, f"and {count(len(code.unreadable) - _SHOWN, 'file')} more; --json has all")


def _answer(code: GpuCode, gpu: GpuTarget | None) -> str:
    if not code.files:
        return "no GPU code that can be read" if code.unreadable else "no GPU code of AMD's"
    found = Counter(file.fit for file in code.files if file.fit)
    told = ", ".join(f"{_WORDS[fit]} {found[fit]}" for fit in GpuFit if fit in found)
    return f"GPU code in {count(len(code.files), 'place')}" + (f"; runs on {gpu.processor}: {told}" if gpu else "")


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


def summary_of(account: GpuAccount) -> str:
    """Return a line: each component with its mark."""
    told = ", ".join(f"{part.component} {mark_of(part)}" for part in account.parts)
    return f"GPU code for {account.processor}: {told or 'none was found'}"


def mark_of(part: GpuVerdict) -> str:
    """Return `✓`, or in short what else there is of a component."""
    words = {GpuFit.RUNS: "✓", GpuFit.PART: "✓ in part", GpuFit.XNACK: "✗ without HSA_XNACK=1", GpuFit.UNKNOWN: "?"}
    return words.get(part.fit) or f"{part.has} ✗"
