"""Module files: the same settings in the words of Lmod and of Tcl modules.

Lmod puts back what a variable was before (pushenv). Tcl modules do not: their pushenv came with 5.1 and loses values
with a colon (seen with 5.2.0), so there a variable is gone after `module unload`.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FAMILY = "containerbindings"
"""The family of LUMI's own bindings modules (LUMI-EasyBuild-contrib singularity-AI-bindings): one at a time."""
_WIDTH = 110
_TCL_SPECIAL = re.compile(r'([\\{}\[\]$"; #])')


class Act(StrEnum):
    """What a module does with a variable."""

    SET = "set"
    PREPEND = "prepend"
    """To a list with colons."""
    BIND = "bind"
    """Added behind a list with commas."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable, and why: a comment above it."""

    act: Act
    name: str
    value: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """What a module says and does."""

    title: str
    """One line."""
    origin: tuple[str, ...]
    """Where it is from and what it was made for, a line each."""
    usage: tuple[str, ...]
    """For `module help`."""
    settings: tuple[Setting, ...]
    notes: tuple[str, ...] = ()
    """What it does not do, and why."""
    name: str | None = None
    """None where it is printed, and gets its name from who saves it."""
    host_files: tuple[str, ...] = ()
    """That must be on the machine. Some engines start without a bind whose source is gone, and warn in one line."""
    missing_hint: str = ""


def lmod(module: ModuleFile) -> str:
    """Return the text for Lmod."""
    lines = [comment("--", text) for text in (module.title, *module.origin)]
    help_text = "\n".join(one_line(line) for line in _help(module))
    level = next("=" * count for count in range(1, len(help_text) + 2) if f"]{'=' * count}]" not in help_text)
    lines += ["", f"help([{level}[", help_text, f"]{level}])", f"whatis({lua(f'Description: {module.title}')})"]
    lines += [f'family("{FAMILY}")']
    if module.host_files:
        files = ", ".join(map(lua, module.host_files))
        text = lua(f" is not here: {module.missing_hint}")
        lines += ["", 'if (mode() == "load") then', f"    for _, file in ipairs({{{files}}}) do"]
        lines += [f"        if not isFile(file) then LmodWarning(file .. {text}) end", "    end", "end"]
    words = {
        Act.SET: lambda name, value: f"pushenv({name}, {value})",
        Act.PREPEND: lambda name, value: f"prepend_path({name}, {value})",
        Act.BIND: lambda name, value: f'append_path({name}, {value}, ",")',
    }
    for setting in module.settings:
        lines += ["", *(comment("--", reason) for reason in setting.reasons)]
        lines.append(words[setting.act](lua(setting.name), lua(setting.value)))
    return _text(lines, module, "--")


def tcl(module: ModuleFile) -> str:
    """Return the text for Tcl modules, version 3.2 on."""
    lines = ["#%Module", *(comment("#", text) for text in (module.title, *module.origin))]
    told = (f"    puts stderr {tcl_word(one_line(line))}" for line in _help(module))
    lines += ["", "proc ModulesHelp {} {", *told, "}"]
    lines.append(f"module-whatis {tcl_word(one_line(f'Description: {module.title}'))}")
    if module.name:
        lines.append(f"conflict {module.name}")
    lines.append(f"if {{[info commands family] ne {{}}}} {{ family {FAMILY} }}")
    if module.host_files:
        files = " ".join(map(tcl_word, module.host_files))
        text = tcl_word(f" is not here: {module.missing_hint}")
        lines += ["", "if {[module-info mode load]} {", f"    foreach file [list {files}] {{"]
        lines += [f"        if {{![file exists $file]}} {{ puts stderr $file{text} }}", "    }", "}"]
    words = {Act.SET: "setenv", Act.PREPEND: "prepend-path", Act.BIND: "append-path --delim ,"}
    for setting in module.settings:
        lines += ["", *(comment("#", reason) for reason in setting.reasons)]
        lines.append(f"{words[setting.act]} {setting.name} {tcl_word(setting.value)}")
    return _text(lines, module, "#")


def _help(module: ModuleFile) -> Iterator[str]:
    yield module.title
    yield from module.usage
    yield from module.origin
    if module.notes:
        yield ""
        yield from (f"note: {note}" for note in module.notes)


def _text(lines: Iterable[str], module: ModuleFile, sign: str) -> str:
    notes = [comment(sign, f"note: {note}") for note in module.notes]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def comment(sign: str, text: str) -> str:
    """Return a comment in lines that fit; a backslash at the end of one would take the next along (Tcl)."""
    wide = textwrap.wrap(one_line(text), _WIDTH, break_long_words=False, break_on_hyphens=False, drop_whitespace=True)
    lines = [f"{line} " if line.endswith("\\") else line for line in wide]
    return "\n".join(f"{sign} {'  ' if position else ''}{line}" for position, line in enumerate(lines))


def lua(text: str) -> str:
    """Return a string of Lua."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def tcl_word(text: str) -> str:
    """Return one word of Tcl, nothing of which is substituted."""
    return _TCL_SPECIAL.sub(r"\\\1", text) if text else "{}"
