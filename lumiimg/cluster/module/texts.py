"""Write the files of a module: a module file in Tcl, which Tcl modules (from 3.2) and Lmod read, and the wrappers.

After `module unload`, Lmod restores a variable's earlier value; Tcl modules unset it. Lmod converts Tcl to Lua and
quotes neither paths in lists nor long texts (tcl2lua.tcl of 8.6): such paths are refused, such texts broken up.

A wrapper is a small script for one program, which calls a script common to all. No module need be loaded: the common
script sets binds and variables, so an editor or a Jupyter kernel that starts a wrapper by its path gets the fast
network, too. Needs Bash 4.4 or newer.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from lumiimg.cluster.binds import JobVariable, SetIn, exports, spec
from lumiimg.cluster.module.plan import SHELL, ImageModule
from lumiimg.cluster.quoting import COLUMNS, comment, filled, if_set, wrapped
from lumiimg.core.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

_FAMILY = "containerbindings"
"""Family of LUMI's own bindings modules (LUMI-EasyBuild-contrib singularity-AI-bindings); only one can be loaded."""
_PLAIN = re.compile(r"[A-Za-z0-9_./:,=+@%-]+")
_SPECIAL = re.compile(r'([\\{}\[\]$"])')
_END_OF_LUA = re.compile(r"\](?==*\])")


def module_text(module: ImageModule) -> str:
    """Return the module file of an image."""
    notes = tuple(f"note: {note}" for note in (*module.notes, *_variables_of_ranks(module)))
    parts = ((module.title,), tuple(_usage(module)), module.origin, notes)
    lines = ["#%Module", *comment(module.title), "", "proc ModulesHelp {} {"]
    for position, part in enumerate(part for part in parts if part):
        lines += ["    puts stderr {}"] if position else []
        lines += [f"    puts stderr {_text(line)}" for text in part for line in wrapped(text, COLUMNS, "", "    ")]
    lines += ["}", f"module-whatis {_text(one_line(f'Description: {module.title}'))}", f"conflict {module.name}"]
    lines += [f"if {{[info commands family] ne {{}}}} {{ family {_FAMILY} }}"]
    lines += [filled("module/put.tcl").rstrip()]
    if module.host_files:
        # some engines skip a bind whose source is missing, and print only a one-line warning
        lines += ["", "if {[module-info mode load]} {", "    set files {}"]
        lines += [f"    lappend files {_word(file)}" for file in module.host_files]
        lines += [f"    set hint {_text(f' is not here: {_missing_hint(module)}')}"]
        lines += ['    foreach file $files { if {![file exists $file]} { puts stderr "$file$hint" } }', "}"]
    return "\n".join((*lines, *_settings(module))) + "\n"


def _settings(module: ImageModule) -> Iterator[str]:
    """Yield the commands that set variables and paths, with reasons."""
    label = re.sub(r"[^A-Z0-9]", "", module.name.upper())
    engine = module.engine
    yield from _reasons(f"wrappers: {', '.join(module.commands)}")
    yield f"prepend-path PATH {_word(str(module.home / 'bin'))}"
    yield from _reasons("for commands of your own: singularity exec $SIF COMMAND")
    yield f"put SIF {_word(str(module.image))}"
    yield f"put SIF{label} {_word(str(module.image))}"
    for bind in module.binds:
        yield from _reasons(f"{bind.source}: {bind.reason}", *bind.chain[1:] and [f"    {' -> '.join(bind.chain)}"])
        yield f"append-path --delim , {engine}_BIND {_word(spec(bind))}"
    for item in module.container_variables:
        yield from _reasons(f"{item.name}: {item.reason}")
        yield f"put {engine}ENV_{item.name} {_word(item.value)}"
    if module.python is not None and module.python.folder:
        whose = f"the environment {module.venv}" if module.venv else "the image"
        yield from _reasons(f"{whose} has its Python there, which is not on the image's own PATH: {module.python.path}")
        yield f"prepend-path {engine}ENV_PREPEND_PATH {_word(module.python.folder)}"
    for variable in module.by_module:
        yield from _reasons(variable.reason)
        yield f"put {variable.name} {_word(variable.value)}"


def _reasons(*reasons: str) -> Iterator[str]:
    yield ""
    for reason in reasons:
        yield from comment(reason)


def _variables_of_ranks(module: ImageModule) -> Iterator[str]:
    for item in module.by_wrappers:
        made = f'; mkdir -p "{item.folder}"' if item.folder is not None else ""
        yield (
            f"{item.name} is set by the wrappers, as each rank has its own; in your scripts, for each rank: "
            f'export {item.name}="{item.value}"{made}  ({item.why})'
        )


def _usage(module: ImageModule) -> Iterator[str]:
    yield f"Commands of the image: {', '.join(module.commands) or 'none that lumiimg knows'}"
    yield "Any other: singularity exec $SIF COMMAND"
    if module.venv:
        yield f"Your own packages are in {module.venv}; for others: lumiimg venv, then make the module again"
    elif any(program.name.startswith("pip") for program in module.programs):
        command = shlex.join(["lumiimg", "venv", str(module.image), "NAME", "-o", "env.sqsh"])
        yield f"For your own packages: {command}, then make the module again with --venv env.sqsh"
    if module.boundary:
        yield "Which network does a job use? NCCL_DEBUG=INFO, then: lumiimg log slurm-JOB.out"


def _missing_hint(module: ImageModule) -> str:
    """Return a hint for a missing host file: what it means, and what to do."""
    since = f"it was on {module.taken}, " if module.taken else ""
    return f"{since}so the fast network may be lost; take a new snapshot (lumiimg host scan) and make the module again"


def _text(text: str) -> str:
    """Return text for people as one Tcl word that cannot end a long string in Lua."""
    return _word(_END_OF_LUA.sub("] ", text))


def _word(text: str) -> str:
    """Return one Tcl word in which nothing is substituted, even inside braces."""
    return text if _PLAIN.fullmatch(text) else '"' + _SPECIAL.sub(r"\\\1", text) + '"'


# -- wrappers --


def wrapper_texts(module: ImageModule) -> dict[str, str]:
    """Return the scripts by their paths below the module's folder."""
    texts = {"enter": _enter(module)}
    for program in module.programs:
        kind = "pip" if program.name.startswith("pip") else "program"
        texts[f"bin/{program.name}"] = _wrapper(module, program.name, kind, program.path)
    if module.shell is not None:
        options = ("--norc",) if module.shell.endswith("/bash") else ()
        texts[f"bin/{SHELL}"] = _wrapper(module, SHELL, "program", module.shell, *options)
    return texts


def _wrapper(module: ImageModule, name: str, kind: str, path: str, *options: str) -> str:
    about = f"{path} in {module.image}, of module {module.full_name}"
    if name == SHELL:
        about += "; arguments are the shell's: start-shell -c 'COMMAND'"
    words = shlex.join([str(module.home / "enter"), name, kind, path, *options])
    return f'#!/bin/bash\n# {one_line(about)}\nexec {words} "$@"\n'


def _enter(module: ImageModule) -> str:
    first, second = ("apptainer", "singularity") if module.engine == "APPTAINER" else ("singularity", "apptainer")
    python = module.python
    return filled(
        "module/enter.sh",
        ORIGIN=(line for text in (module.title, *module.origin) for line in comment(text)),
        IMAGE=shlex.quote(str(module.image)),
        PYTHON=f"python={shlex.quote(python.path)}" if python else "",
        PREPEND=filled("module/prepend.sh", ENGINE=module.engine) if python else "",
        FIRST=first,
        SECOND=second,
        OUTSIDE=(f"    {line}" for line in _outside(module)),
        PIP=filled("module/pip.sh") if python else "",
    )


def _outside(module: ImageModule) -> Iterator[str]:
    """Yield code that runs before the container starts."""
    if module.host_files:
        files = " \\\n        ".join(map(shlex.quote, module.host_files))
        yield f"for file in \\\n        {files}; do"
        yield f'    [ -e "$file" ] || fail "$file"{shlex.quote(f" is not on this node: {_missing_hint(module)}")}'
        yield "done"
    if module.venv:
        yield f"[ -e {shlex.quote(str(module.venv))} ] || fail {shlex.quote(f'{module.venv} is missing')}"
    yield from exports(module.engine, module.binds, module.container_variables)
    if module.python is not None and module.python.folder is not None:
        yield "# this is not on the image's own PATH"
        yield f"prepend {shlex.quote(module.python.folder)}"
    if any("USER" in item.names for item in module.variables):
        yield "# folder names contain it, and a step with few variables (srun --export=NONE) lacks it"
        yield '[ -n "${USER-}" ] || USER=$(id -un)'
    caches, of_job = module.caches, list[str]()
    for item in (*module.by_module, *module.by_wrappers):
        if caches is not None and item.value.startswith(f"{caches}/"):
            of_job += _set(item, item.value.replace(caches, "$caches", 1))
        else:
            yield from _set(item, item.value)
    if caches is not None:
        yield "# caches on the node, in a job: its own folder, or a new one if somebody else made that"
        yield f'if [ -n "${{{caches.rpartition("$")[2]}-}}" ]; then'
        yield f'    caches="{if_set(caches)}"'
        yield '    mkdir -m 700 "$caches" 2>/dev/null'
        yield '    { [ ! -L "$caches" ] && chmod 700 "$caches" 2>/dev/null; } || caches=$(mktemp -d) ||'
        yield '        fail "no folder for caches can be made in /tmp" 1'
        yield from (f"    {line}" for line in of_job)
        yield "fi"
    yield 'enter=("$engine" exec "$image")'


def _set(item: JobVariable, value: str) -> Iterator[str]:
    """Yield code that sets a variable for jobs unless the user has set it; `value` may replace its own value."""
    if item.set_in is SetIn.BATCH:
        early = "srun reads it before it starts this script, so here it would be too late: load the module, or"
        yield from comment(f"{early} export {item.name}={item.value} ({item.reason})")
        return
    yield from comment(item.reason)
    yield f'[ -n "${{{item.name}+set}}" ] || export {item.name}="{if_set(value)}"'
    if item.names and item.value.startswith("/"):
        yield f'mkdir -p "${item.name}"'
    if item.folder is not None:
        yield f'mkdir -p "{if_set(item.folder)}"'
