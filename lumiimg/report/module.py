"""What `lumiimg module` says: what was written, what it does not do, and what to type next."""

from __future__ import annotations

import shlex
from pathlib import Path

from lumiimg.cluster.module.folder import module_files
from lumiimg.cluster.module.plan import NOT_RUN, ImageModule, When
from lumiimg.report.console import INDENT, Console, console, headline, marked, print_json, say, verbatim
from lumiimg.report.json_images import ModuleFiles
from lumiimg.wording import count


def print_json_of(module: ImageModule, folder: Path) -> None:
    """Print what was written for machines."""
    for_tcl, for_lmod = module_files(module, folder)
    files = ModuleFiles(for_lmod, for_tcl, module.home / "bin")
    print_json("module", of=module, use=folder.absolute() / "modulefiles", files=files)


def print_module(module: ImageModule, folder: Path, *, quiet: bool = False, stderr: bool = False) -> None:
    """Print what was written for a person."""
    out = console(stderr=stderr, quiet=quiet)
    headline(out, f"wrote module {module.full_name} for {module.title}")
    _fact(out, "commands", ", ".join(module.commands) or "none that lumiimg knows")
    _fact(out, "binds", _binds(module))
    for when, title in (
        (When.LOADED, "set by the module"),
        (When.RANK, "set by the wrappers, for each rank"),
        (When.NEVER, "left out"),
    ):
        found = [item.name + (f" ({item.left_out})" if item.left_out else "") for item in module.variables(when)]
        if found:
            _fact(out, title, ", ".join(found))
    for note in (*module.notes, *([NOT_RUN] if NOT_RUN in module.origin else [])):
        marked(out, "unknown", note)
    out.print("\nnext:")
    use = folder.absolute() / "modulefiles"
    verbatim(out, f"{INDENT}module use {shlex.quote(str(use))}")
    verbatim(out, f"{INDENT}module load {module.full_name}")
    verbatim(out, f"{INDENT}{module.commands[0] if module.commands else 'singularity exec $SIF'} …")


def _fact(out: Console, title: str, text: str) -> None:
    say(out, text, first=f"{INDENT}{title}: ", rest=INDENT * 2)


def _binds(module: ImageModule) -> str:
    if not module.binds:
        return "nothing"
    if module.boundary is None:
        return f"{count(len(module.binds), 'path')} of the site, no library of the machine"
    libraries = len(module.host_files)
    told = f"{'1 library' if libraries == 1 else f'{libraries} libraries'} of {module.boundary.host}"
    return f"{told}, {count(len(module.binds) - libraries, 'other path')} (fabric {module.boundary.fabric.value})"
