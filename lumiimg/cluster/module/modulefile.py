"""Module files: the same settings in the words of Lmod and of Tcl modules.

Lmod puts back what a variable was before (pushenv). Tcl modules do not: their pushenv came with 5.1 and loses values
with a colon (seen with 5.2.0), so there a variable is gone after `module unload`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from lumiimg.cluster.shell_quote import wrapped
from lumiimg.core.errors import one_line

FAMILY = "containerbindings"
"""The family of LUMI's own bindings modules (LUMI-EasyBuild-contrib singularity-AI-bindings): one at a time."""
_WIDTH = 110
_TCL_PLAIN = re.compile(r"[A-Za-z0-9_./:,=+@%-]+")
_NOT_IN_BRACES = re.compile(r"[{}\\]")
_LUA_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TCL_SPECIAL = re.compile(r'([\\{}\[\]$"; #])')


class Act(StrEnum):
    """What a module does with a variable."""

    SET = "set"
    PREPEND = "prepend"
    """To a list with colons."""
    BIND = "bind"
    """Added behind a list with commas."""


@dataclass(frozen=True, slots=True)
class ModuleSetting:
    """One variable, and why: a comment above it."""

    act: Act
    name: str
    value: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """What a module says and does."""

    name: str
    title: str
    origin: tuple[str, ...]
    """Where it is from and what it was made for, a line each."""
    usage: tuple[str, ...]
    settings: tuple[ModuleSetting, ...]
    notes: tuple[str, ...] = ()
    """What it does not do, and why."""
    host_files: tuple[str, ...] = ()
    """That must be on the machine. Some engines start without a bind whose source is gone, and warn in one line."""
    missing_hint: str = ""


def lmod(module: ModuleFile) -> str:
    """Return the text for Lmod."""
    help_text = "\n".join(_help(module))
    level = next("=" * count for count in range(1, len(help_text) + 2) if f"]{'=' * count}]" not in help_text)
    lines = [comment("--", module.title), "", f"help([{level}[", help_text, f"]{level}])"]
    lines += [f"whatis({lua(one_line(f'Description: {module.title}'))})", f'family("{FAMILY}")']
    if module.host_files:
        lines += ["", 'if (mode() == "load") then', f"    local hint = {lua(f' is not here: {module.missing_hint}')}"]
        lines += ["    local files = {", *(f"        {lua(file)}," for file in module.host_files), "    }"]
        lines += ["    for _, file in ipairs(files) do"]
        lines += ["        if not isFile(file) then LmodWarning(file .. hint) end", "    end", "end"]
    words = {
        Act.SET: lambda name, value: f"pushenv({name}, {value})",
        Act.PREPEND: lambda name, value: f"prepend_path({name}, {value})",
        Act.BIND: lambda name, value: f'append_path({name}, {value}, ",")',
    }
    for setting in module.settings:
        lines += ["", *(comment("--", reason) for reason in setting.reasons)]
        lines.append(words[setting.act](lua(setting.name), lua(setting.value)))
    return "\n".join(lines) + "\n"


def tcl(module: ModuleFile) -> str:
    """Return the text for Tcl modules, version 3.2 on."""
    told = (f"    puts stderr {tcl_word(line)}" for line in _help(module))
    lines = ["#%Module", comment("#", module.title), "", "proc ModulesHelp {} {", *told, "}"]
    lines.append(f"module-whatis {tcl_word(one_line(f'Description: {module.title}'))}")
    lines.append(f"conflict {module.name}")
    lines.append(f"if {{[info commands family] ne {{}}}} {{ family {FAMILY} }}")
    if module.host_files:
        lines += ["", "if {[module-info mode load]} {"]
        lines.append(f"    set hint {tcl_word(f' is not here: {module.missing_hint}')}")
        lines += ["    set files {}", *(f"    lappend files {tcl_word(file)}" for file in module.host_files)]
        lines += ["    foreach file $files {", '        if {![file exists $file]} { puts stderr "$file$hint" }']
        lines += ["    }", "}"]
    words = {Act.SET: "setenv", Act.PREPEND: "prepend-path", Act.BIND: "append-path --delim ,"}
    for setting in module.settings:
        lines += ["", *(comment("#", reason) for reason in setting.reasons)]
        lines.append(f"{words[setting.act]} {setting.name} {tcl_word(setting.value)}")
    return "\n".join(lines) + "\n"


def _help(module: ModuleFile) -> Iterator[str]:
    parts = ((module.title,), module.usage, module.origin, tuple(f"note: {note}" for note in module.notes))
    for position, part in enumerate(parts):
        if position and part:
            yield ""
        for line in part:
            yield from wrapped(line, _WIDTH, "", "    ")


def comment(sign: str, text: str) -> str:
    """Return a comment in lines that fit; a backslash at the end of one would take the next along (Tcl)."""
    return "\n".join(
        f"{sign} {line}{' ' if line.endswith(chr(92)) else ''}" for line in wrapped(text, _WIDTH, "", "  ")
    )


def lua(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{_LUA_CONTROL.sub(lambda match: f"{chr(92)}{ord(match[0]):03}", escaped)}"'


def tcl_word(text: str) -> str:
    """Return one word of Tcl, nothing of which is substituted."""
    if _TCL_PLAIN.fullmatch(text):
        return text
    return _TCL_SPECIAL.sub(r"\\\1", text) if _NOT_IN_BRACES.search(text) else f"{{{text}}}"
