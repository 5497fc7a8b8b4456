"""The file of a module, in Tcl, which Tcl modules (3.2 on) and Lmod read.

After `module unload`, a variable is what it was before with Lmod; with Tcl modules it is gone. Lmod makes Lua of Tcl,
and quotes neither a path in a list nor a long text (tcl2lua.tcl of 8.6): such paths are refused, such texts parted.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from lumiimg.cluster.binds import spec
from lumiimg.cluster.module.plan import ImageModule, missing_hint
from lumiimg.cluster.quoting import COLUMNS, comment, filled, wrapped
from lumiimg.core.errors import one_line
from lumiimg.fabric.path import Fabric

if TYPE_CHECKING:
    from collections.abc import Iterator

_FAMILY = "containerbindings"
"""The family of LUMI's own bindings modules (LUMI-EasyBuild-contrib singularity-AI-bindings): one at a time."""
_PLAIN = re.compile(r"[A-Za-z0-9_./:,=+@%-]+")
_NOT_IN_BRACES = re.compile(r"[{}\\]")
_SPECIAL = re.compile(r'([\\{}\[\]$"; #])')
_END_OF_LUA = re.compile(r"\](?==*\])")


def module_text(module: ImageModule) -> str:
    """Return the module file of an image."""
    notes = tuple(f"note: {note}" for note in (*module.notes, *_variables_left(module)))
    parts = ((module.title,), tuple(_usage(module)), module.origin, notes)
    lines = ["#%Module", *comment(module.title), "", "proc ModulesHelp {} {"]
    for position, part in enumerate(part for part in parts if part):
        lines += ["    puts stderr {}"] if position else []
        lines += [f"    puts stderr {_text(line)}" for text in part for line in wrapped(text, COLUMNS, "", "    ")]
    lines += ["}", f"module-whatis {_text(one_line(f'Description: {module.title}'))}", f"conflict {module.name}"]
    lines += [f"if {{[info commands family] ne {{}}}} {{ family {_FAMILY} }}"]
    lines += [filled("module/put.tcl").rstrip()]
    if module.host_files:
        # some engines start without a bind whose source is gone, and warn in one line
        lines += ["", "if {[module-info mode load]} {", "    set files {}"]
        lines += [f"    lappend files {tcl_word(file)}" for file in module.host_files]
        lines += [f"    set hint {_text(f' is not here: {missing_hint(module.taken)}')}"]
        lines += ['    foreach file $files { if {![file exists $file]} { puts stderr "$file$hint" } }', "}"]
    return "\n".join((*lines, *_settings(module))) + "\n"


def _settings(module: ImageModule) -> Iterator[str]:
    """Yield what the module sets, and why."""
    label = re.sub(r"[^A-Z0-9]", "", module.name.upper())
    engine = module.engine
    yield from _reasons(f"wrappers: {', '.join(module.commands)}")
    yield f"prepend-path PATH {tcl_word(str(module.home / 'bin'))}"
    yield from _reasons("for commands of your own: singularity exec $SIF COMMAND")
    yield f"put SIF {tcl_word(str(module.image))}"
    yield f"put SIF{label} {tcl_word(str(module.image))}"
    for bind in module.binds:
        yield from _reasons(f"{bind.source}: {bind.reason}", *bind.chain[1:] and [f"    {' -> '.join(bind.chain)}"])
        yield f"append-path --delim , {engine}_BIND {tcl_word(spec(bind))}"
    for item in module.container_variables:
        yield from _reasons(f"{item.name}: {item.reason}")
        yield f"put {engine}ENV_{item.name} {tcl_word(item.value)}"
    if module.python is not None and module.python.folder:
        whose = f"the environment {module.venv}" if module.venv else "the image"
        yield from _reasons(
            f"{whose} has its Python there, and the image's own PATH does not lead to it: {module.python.path}"
        )
        yield f"prepend-path {engine}ENV_PREPEND_PATH {tcl_word(module.python.folder)}"
    for variable in module.by_module:
        yield from _reasons(variable.reason)
        yield f"put {variable.name} {tcl_word(variable.value)}"


def _reasons(*reasons: str) -> Iterator[str]:
    yield ""
    for reason in reasons:
        yield from comment(reason)


def _variables_left(module: ImageModule) -> Iterator[str]:
    for item in module.by_wrappers:
        made = f'; mkdir -p "{item.folder}"' if item.folder is not None else ""
        yield (
            f"{item.name} is set by the wrappers, as each rank has its own; in your scripts, for each rank: "
            f'export {item.name}="{item.value}"{made}  ({item.why})'
        )
    for left in module.left_out:
        yield f"{left.variable.name}={left.variable.value} is left out, {left.why} ({left.variable.why})"


def _usage(module: ImageModule) -> Iterator[str]:
    yield f"Commands of the image: {', '.join(module.commands) or 'none that lumiimg knows'}"
    yield "Any other: singularity exec $SIF COMMAND"
    if module.venv:
        yield f"Packages of your own are those of {module.venv}; for others: lumiimg venv, then the module again"
    elif any(program.name.startswith("pip") for program in module.programs):
        command = shlex.join(["lumiimg", "venv", str(module.image), "NAME", "-o", "env.sqsh"])
        yield f"Packages of your own: {command}, then the module again with --venv env.sqsh"
    if not module.boundary or module.boundary.fabric is Fabric.NONE:
        return
    yield "Which network does a job use? NCCL_DEBUG=INFO, then: lumiimg log slurm-JOB.out"


def _text(text: str) -> str:
    """Return a text for a person as one word, which ends no long text of Lua's."""
    return tcl_word(_END_OF_LUA.sub("] ", text))


def tcl_word(text: str) -> str:
    """Return one word of Tcl, nothing of which is substituted."""
    if _PLAIN.fullmatch(text):
        return text
    return _SPECIAL.sub(r"\\\1", text) if _NOT_IN_BRACES.search(text) else f"{{{text}}}"
