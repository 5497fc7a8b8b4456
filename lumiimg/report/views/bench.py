"""Answer of `bench import`: calls by kind, two rows for each place."""

from __future__ import annotations

from lumiimg.core.errors import ExitCode
from lumiimg.core.findings import Severity
from lumiimg.host.import_calls import ImportBench, ImportCost, ImportSource
from lumiimg.report.document import Document, Item, Row, Section, Table

_COLUMNS = {"all": "metadata", "opens": "opens", "nothing": "failed"}
"""Field of Counts under each heading."""
_NOTE = (
    "all: opens, stats, directory reads and similar calls; opens: how many of them open a file; nothing: how many find "
    "nothing. Reads of files are not counted. Each process of a job makes all these calls"
)
_OF_AN_IMAGE = (
    "; for an image, only some reach the file system: the engine's calls on the image file, the folders above it and "
    "the home, once per container, and the program's calls on bound paths"
)


def import_document(found: ImportBench) -> Document:
    """Return the answer of `bench import PLACE…`."""
    startups, module = found.places, found.module
    is_image = any(startup.kind is ImportSource.IMAGE for startup in startups)
    return Document(
        command="bench import",
        subject=module,
        severity=Severity.INFO if found.exit_code is ExitCode.GOOD else Severity.UNKNOWN,
        sentence=f"import {module}: calls on files and folders, counted with strace; no times",
        is_list=True,
        sections=tuple(_place(startup, module) for startup in startups),
        closing=(_NOTE + (_OF_AN_IMAGE if is_image else ""),),
    )


def _place(startup: ImportCost, module: str) -> Section:
    rows = tuple(
        Row((label, *(f"{getattr(counts, name):,}" if counts else "?" for name in _COLUMNS.values())))
        for label, counts in (("program asks", startup.program), ("reaches it", startup.shared))
    )
    table = Table(("", *_COLUMNS), rows)
    why_not = [Item(Severity.UNKNOWN, f"not counted: {startup.why_not}")] if startup.why_not else []
    title = f"{startup.path} ({startup.kind}): Python {startup.python}, {module} {startup.version or '-'}"
    return Section(title, (table, *why_not), is_headed=True)
