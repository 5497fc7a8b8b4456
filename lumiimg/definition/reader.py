"""Definitions that an image brings along: taken only where they are, line by line, what the writer writes.

A definition can do more than describe an image. `%setup` and `%pre` run on the machine that builds it, however many `%`
they have and whatever their case (getSectionName in apptainer's pkg/build/types/parser); `%files` and a header read its
files; debootstrap runs on it. So nothing is looked for and refused: what is known is let through.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lumiimg.definition.text import DefinitionError, trap
from lumiimg.definition.writer import LABEL, NOTE, POST
from lumiimg.errors import BadInputError
from lumiimg.resolve.network.mirrors import Mirrors, checked
from lumiimg.resolve.network.registry import parse_reference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.definition.writer import Definition

LOCAL_AGENTS = frozenset({"localimage", "oci", "oci-archive", "docker-archive"})
"""Those that read a file or a folder of this machine."""
_REGISTRY_AGENTS = frozenset({"docker", "oras"})
_VERSION = r"[0-9A-Za-z][0-9A-Za-z.+-]{0,63}"
_NOTE = re.compile(re.escape(NOTE).replace(r"\{\}", _VERSION))
_SECTIONS = ("%files", "%environment", POST, "%test", "%labels")
_ENVIRONMENT = re.compile(r"    export [A-Za-z_][A-Za-z0-9_]*='.*")
_LABEL_VERSION = re.compile(rf"    lumiimg\.version {_VERSION}")
_UNSEEN = re.compile(r"    lumiimg\.version ")
"""The key of a layer leaves such lines out (keys.py), so that what they do must be nothing."""
_SUITE = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
"""debootstrap runs its script of that name: no path, no option."""
_PACKAGES = re.compile(r"[a-z0-9][a-z0-9+.-]{0,99}(?: [a-z0-9][a-z0-9+.-]{0,99}){0,999}")


def check_definition(definition: Definition, number: int) -> None:
    """Raise DefinitionError where the text is not what the writer makes of a layer, the `number`th, from 1."""
    name = f"{definition.name}.def"
    head, sections = _split(definition.text, name)
    _check_head(definition, head, name)
    files = [f"    {file.path} {file.target}" for file in definition.files]
    if sections.get("%files", []) != files:
        raise DefinitionError("copies other files than it names", where=name)
    if not all(map(_ENVIRONMENT.fullmatch, sections.get("%environment", []))):
        raise DefinitionError("does more in %environment than set variables", where=name)
    if POST not in sections:
        raise DefinitionError(f"has no {POST}", where=name)
    labels = list(sections.get("%labels", []))
    if number == 1 and labels and _LABEL_VERSION.fullmatch(labels[0]):
        del labels[0]
    if labels != [f"    {LABEL}{number:02} {definition.layers[0]}"]:
        raise DefinitionError("has other labels than its place and its layer", where=name)


def _split(text: str, name: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the lines of the head, and those of each section: known ones, each once, in the writer's order."""
    *lines, rest = text.split("\n")
    if rest:
        raise DefinitionError("does not end with a line", where=name)
    head: list[str] = []
    sections: dict[str, list[str]] = {}
    to_come: Sequence[str] = _SECTIONS
    body = head
    for number, line in enumerate(lines, start=1):
        where = f"{name}:{number}"
        if line.lstrip().startswith("%"):
            if line not in to_come:
                raise DefinitionError(f"a section that lumiimg does not write here: {line.strip()[:40]!r}", where=where)
            if len(body) < 2 or body.pop():  # a line, and an empty one between sections
                raise DefinitionError(f"no end of what is before {line!r}", where=where)
            to_come = to_come[to_come.index(line) + 1 :]
            body = sections[line] = []
            continue
        problem, _ = trap(line) if sections else ("", "")  # the head is compared as a whole
        if problem:
            raise DefinitionError(problem, where=where)
        if "%labels" not in sections and _UNSEEN.match(line):
            raise DefinitionError("a label outside of %labels", where=where)
        body.append(line)
    if not body:
        raise DefinitionError("ends with an empty section", where=name)
    return head, sections


def _check_head(definition: Definition, head: Sequence[str], name: str) -> None:
    if not head or not _NOTE.fullmatch(head[0]):
        raise DefinitionError("does not begin as lumiimg begins it", where=f"{name}:1")
    header = list(head[1:])
    if definition.parent is not None:
        is_known = header == ["Bootstrap: localimage", f"From: {definition.parent}.sif"]
        is_known = is_known and definition.origin is None and not definition.plain_http
    else:
        is_known = _is_base(definition, header)
    if not is_known:
        raise DefinitionError("has a header that lumiimg does not write there", where=name)


def _is_base(definition: Definition, header: Sequence[str]) -> bool:
    if not all(": " in line and line.isprintable() and "{{" not in line for line in header):
        return False
    keys, values = zip(*(line.split(": ", 1) for line in header), strict=True) if header else ((), ())
    if keys[:2] == ("Bootstrap", "From") and len(keys) == 2:
        agent, origin = values
        if agent in LOCAL_AGENTS:
            return origin == str(definition.origin) and not definition.plain_http
        return agent in _REGISTRY_AGENTS and definition.origin is None and _is_reference(origin)
    if keys[:3] == ("Bootstrap", "OSVersion", "MirrorURL") and keys[3:] in {(), ("Include",)}:
        return (
            values[0] == "debootstrap"
            and definition.origin is None
            and not definition.plain_http
            and _SUITE.fullmatch(values[1]) is not None
            and _is_address(values[2])
            and all(map(_PACKAGES.fullmatch, values[3:]))
        )
    return False


def _is_reference(text: str) -> bool:
    try:
        return str(parse_reference(text, Mirrors({}))) == text
    except BadInputError:
        return False


def _is_address(text: str) -> bool:
    try:
        return checked(text, "MirrorURL") == text
    except BadInputError:
        return False
