"""The wrappers of a module: a small script for each program, and the one that all of them call.

They need no module loaded: binds and variables are in the script, so that an editor or a Jupyter kernel which starts
one by its path does not run without the fast network. Bash 4.4 or newer.
"""

from __future__ import annotations

import shlex

from lumiimg.cluster.binds import exports
from lumiimg.cluster.module.plan import SHELL, ImageModule, in_shell, missing_hint
from lumiimg.cluster.quoting import comment, filled
from lumiimg.cluster.variables import JobVariable, SetIn
from lumiimg.core.errors import one_line

ENTER = "enter"
"""Name of the script that all others call."""


def wrapper_texts(module: ImageModule) -> dict[str, str]:
    """Return the scripts by their names below the module's folder."""
    texts = {ENTER: _enter(module)}
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
    words = shlex.join([str(module.home / ENTER), name, kind, path, *options])
    return f'#!/bin/bash\n# {one_line(about)}\nexec {words} "$@"\n'


def _enter(module: ImageModule) -> str:
    engines = ("apptainer", "singularity")
    first, second = engines if module.engine == "APPTAINER" else reversed(engines)
    python = module.python is not None
    return filled(
        "module/enter.sh",
        ORIGIN=(line for text in (module.title, *module.origin) for line in comment(text)),
        IMAGE=shlex.quote(str(module.image)),
        PYTHON=f"python={shlex.quote(module.python.path)}" if module.python is not None else "",
        PREPEND=filled("module/prepend.sh", ENGINE=module.engine) if python else "",
        FIRST=first,
        SECOND=second,
        OUTSIDE=(f"    {line}" for line in _outside(module)),
        PIP=filled("module/pip.sh") if python else "",
    )


def _outside(module: ImageModule) -> list[str]:
    """Return what is done before the container is started."""
    lines: list[str] = []
    if module.host_files:
        files = " \\\n        ".join(map(shlex.quote, module.host_files))
        lines.append(f"for file in \\\n        {files}; do")
        hint = shlex.quote(f" is not on this node: {missing_hint(module.taken)}")
        lines += [f'    [ -e "$file" ] || fail "$file"{hint}', "done"]
    if module.venv:
        lines.append(f"[ -e {shlex.quote(str(module.venv))} ] || fail {shlex.quote(f'{module.venv} has gone')}")
    lines += exports(module.engine, module.binds, module.container_variables)
    if module.python is not None and module.python.folder is not None:
        lines += ["# the image's own PATH does not lead there", f"prepend {shlex.quote(module.python.folder)}"]
    of_job: list[str] = []
    if any("USER" in item.names for item in module.variables):
        lines += ["# folders are named by it, and a step with few variables (srun --export=NONE) has none"]
        lines += ['[ -n "${USER-}" ] || USER=$(id -un)']
    for item in (*module.by_module, *module.by_wrappers):
        if module.caches is not None and item.value.startswith(f"{module.caches}/"):
            of_job += _set(item, item.value.replace(module.caches, "$caches", 1))
        else:
            lines += _set(item, item.value)
    if module.caches is not None:
        number = module.caches.rpartition("$")[2]
        lines += ["# caches, on the node, in a job: a folder of its own; where somebody else has made it, a new one"]
        lines += [
            f'if [ -n "${{{number}-}}" ]; then',
            *(f"    {line}" for line in (*_folder(module.caches), *of_job)),
            "fi",
        ]
    return [*lines, 'enter=("$engine" exec "$image")']


def _folder(caches: str) -> list[str]:
    return [
        f'caches="{in_shell(caches)}"',
        'mkdir -m 700 "$caches" 2>/dev/null',
        '{ [ ! -L "$caches" ] && chmod 700 "$caches" 2>/dev/null; } || caches=$(mktemp -d) ||',
        '    fail "no folder for caches can be made in /tmp" 1',
    ]


def _set(item: JobVariable, value: str) -> list[str]:
    """Return what sets a variable for jobs, unless the user has; `value` may be another than its own."""
    if item.set_in is SetIn.BATCH:
        early = "srun reads it before it starts this script, so here it would be too late: load the module, or"
        return comment(f"{early} export {item.name}={item.value} ({item.reason})")
    lines = comment(item.reason)
    lines.append(f'[ -n "${{{item.name}+set}}" ] || export {item.name}="{in_shell(value)}"')
    if item.names and item.value.startswith("/"):
        lines.append(f'mkdir -p "${item.name}"')
    if item.folder is not None:
        lines.append(f'mkdir -p "{in_shell(item.folder)}"')
    return lines
