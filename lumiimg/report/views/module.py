"""What `module` answers: what was written, what it does not do, and what to type next."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg.cluster.module.plan import NOT_RUN, ImageModule, When
from lumiimg.findings import Severity
from lumiimg.report.document import Document, Facts, Item, Lines, Section
from lumiimg.wording import count

if TYPE_CHECKING:
    from lumiimg.cluster.module.folder import WrittenModule


def module_document(written: WrittenModule) -> Document:
    """Return what a module does, and how it is loaded."""
    module = written.of
    facts = [("commands", ", ".join(module.commands) or "none that lumiimg knows"), ("binds", _binds(module))]
    for when, title in (
        (When.LOADED, "set by the module"),
        (When.RANK, "set by the wrappers, for each rank"),
        (When.NEVER, "left out"),
    ):
        found = [item.name + (f" ({item.left_out})" if item.left_out else "") for item in module.variables(when)]
        if found:
            facts.append((title, ", ".join(found)))
    notes = (*module.notes, *([NOT_RUN] if NOT_RUN in module.origin else []))
    commands = (
        f"module use {shlex.quote(str(written.use))}",
        f"module load {module.full_name}",
        f"{module.commands[0] if module.commands else 'singularity exec $SIF'} …",
    )
    return Document(
        command="module",
        subject=module.full_name,
        is_list=True,
        sentence=f"wrote module {module.full_name} for {module.title}",
        sections=(
            Section("What it does", (Facts(tuple(facts)),)),
            Section("Notes", (Item(Severity.UNKNOWN, note) for note in notes)),
            Section("next:", (Lines(commands, what="commands"),), is_headed=True),
        ),
    )


def _binds(module: ImageModule) -> str:
    if not module.binds:
        return "nothing"
    if module.boundary is None:
        return f"{count(len(module.binds), 'path')} of the site, no library of the machine"
    libraries = len(module.host_files)
    of_host = f"{count(libraries, 'library')} of {module.boundary.host}"
    return f"{of_host}, {count(len(module.binds) - libraries, 'other path')} (fabric {module.boundary.fabric.value})"
